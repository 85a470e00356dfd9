"""The flags of leader election of Kubernetes' own components, which differ from those of sidecars."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Awaitable, Callable
from typing import Annotated

from msgspec import Struct

from volplane.base.settings import Duration, about
from volplane.client.client import Client
from volplane.loops.leader import JITTER, run_as_leader

LEASES = "leases"


class ComponentLeaderElection(Struct, frozen=True, kw_only=True):
    leader_elect: Annotated[bool, about("run only while holding a Lease; one of several replicas works")] = (
        True
    )
    leader_elect_lease_duration: Annotated[
        Duration, about("time without a renewal before another replica takes over")
    ] = 15.0
    leader_elect_renew_deadline: Annotated[
        Duration, about("time without a successful renewal before the leader stops")
    ] = 10.0
    leader_elect_retry_period: Annotated[Duration, about("interval between attempts to get the Lease")] = 2.0
    leader_elect_resource_lock: Annotated[str, about("kind of the lock; only leases")] = LEASES
    leader_elect_resource_name: Annotated[
        str, about("name of the Lease; default: the upstream component's", value="NAME")
    ] = ""
    leader_elect_resource_namespace: Annotated[str, about("namespace of the Lease")] = "kube-system"

    def __post_init__(self) -> None:
        if not self.leader_elect:
            return
        if self.leader_elect_resource_lock != LEASES:
            raise ValueError(
                f"--leader-elect-resource-lock must be {LEASES}, not {self.leader_elect_resource_lock!r}"
            )
        if self.leader_elect_lease_duration < 1:
            raise ValueError("--leader-elect-lease-duration must be at least 1s")
        if self.leader_elect_lease_duration <= self.leader_elect_renew_deadline:
            raise ValueError(
                "--leader-elect-lease-duration must be greater than --leader-elect-renew-deadline"
            )
        if self.leader_elect_renew_deadline <= self.leader_elect_retry_period * JITTER:
            raise ValueError(
                "--leader-elect-renew-deadline must be greater than "
                f"{JITTER} times --leader-elect-retry-period"
            )


async def lead_component(
    client: Client, settings: ComponentLeaderElection, component: str, body: Callable[[], Awaitable[None]]
) -> None:
    """Run `body` at once, or while holding the Lease that upstream's component of this name holds."""
    if not settings.leader_elect:
        return await body()
    await run_as_leader(
        Client(client.transport, component=client.component),
        settings.leader_elect_resource_name or component,
        settings.leader_elect_resource_namespace,
        f"{socket.gethostname()}_{uuid.uuid4()}",
        body,
        duration=settings.leader_elect_lease_duration,
        renew=settings.leader_elect_renew_deadline,
        retry=settings.leader_elect_retry_period,
        guarded=client,
    )
