"""The scheduler: every pod gets a node that has room for it and reaches its volumes.

`plan` decides, one file per filter; `controller` keeps the books, sees to the volumes and binds.
"""

from __future__ import annotations

from volplane.client.client import Client
from volplane.loops.wait_reports import WaitRegistry
from volplane.scheduler.controller import DEFAULT, Scheduler


async def run(
    client: Client,
    *,
    scheduler_name: str = DEFAULT,
    bind_timeout: float = 600.0,
    wait_registry: WaitRegistry | None = None,
) -> None:
    """Until cancelled."""
    scheduler = Scheduler(client, scheduler_name=scheduler_name, bind_timeout=bind_timeout)
    await (wait_registry or WaitRegistry()).run(scheduler)
