"""The scheduler: binds each pod to a node that has room for it and from which its volumes are reachable.

`plan` decides, with one file per filter; `controller` writes the volumes' bindings and binds the pod.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from volplane.base.backoff import Backoff
from volplane.client.client import Client
from volplane.loops.leader_elect import ComponentLeaderElection, lead_component
from volplane.loops.wait_reports import WaitRegistry
from volplane.scheduler.controller import Scheduler
from volplane.scheduler.profile import DEFAULT_PROFILE, SchedulerProfile
from volplane.scheduler.unschedulable_pods import BACKOFF

COMPONENT = "kube-scheduler"


async def run(
    client: Client,
    *,
    profiles: Sequence[SchedulerProfile] = (DEFAULT_PROFILE,),
    backoff: Backoff = BACKOFF,
    wait_registry: WaitRegistry | None = None,
    election: ComponentLeaderElection | None = None,
) -> None:
    """Run until cancelled. `election`: only while holding the Lease of kube-scheduler."""
    scheduler = Scheduler(client, profiles=profiles, backoff=backoff)
    work = partial((wait_registry or WaitRegistry()).run, scheduler)
    await (lead_component(client, election, COMPONENT, work) if election is not None else work())
