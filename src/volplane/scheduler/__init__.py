"""The scheduler: binds each pod to a node that has room for it and from which its volumes are reachable.

`plan` decides, with one file per filter; `controller` writes the volumes' bindings and binds the pod.
"""

from __future__ import annotations

from functools import partial

from volplane.client.client import Client
from volplane.loops.leader_elect import ComponentLeaderElection, lead_component
from volplane.loops.wait_reports import WaitRegistry
from volplane.scheduler.controller import DEFAULT, Scheduler

COMPONENT = "kube-scheduler"


async def run(
    client: Client,
    *,
    scheduler_name: str = DEFAULT,
    bind_timeout: float = 600.0,
    wait_registry: WaitRegistry | None = None,
    election: ComponentLeaderElection | None = None,
) -> None:
    """Run until cancelled. `election`: only while holding the Lease of kube-scheduler."""
    scheduler = Scheduler(client, scheduler_name=scheduler_name, bind_timeout=bind_timeout)
    work = partial((wait_registry or WaitRegistry()).run, scheduler)
    await (lead_component(client, election, COMPONENT, work) if election is not None else work())
