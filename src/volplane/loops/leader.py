"""Leader election on a Lease, compatible with client-go's electors.

Whether the holder is alive is decided by our own clock since its record last changed, never by the timestamps
in the record. A candidate watches the Lease: it sees each renewal and tries at the moment the last one
expires, so that it leads at most one lease duration after the holder's end; it takes a released Lease at
once. Without permission to watch, it reads every `retry` seconds. Because candidates are that quick, a holder
who cannot renew stops before its Lease expires. An identity that is stable over restarts takes its own Lease
back at once.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Annotated

from msgspec import Struct, structs

from volplane.api.coordination import Lease, LeaseSpec
from volplane.api.errors import AlreadyExists, APIError, Conflict, Unavailable
from volplane.api.meta import ObjectMeta
from volplane.base import clock
from volplane.base.settings import Duration, about
from volplane.base.tasks import cancel_and_wait
from volplane.client.client import Client
from volplane.client.transport import ChangeType
from volplane.loops.events import EventRecorder

log = logging.getLogger(__name__)

JITTER = 1.2
CALL_TIMEOUT = 5.0  # seconds that one request may take
RELEASE_TIMEOUT = 2.0  # seconds for releasing the Lease
LEASE_SHARE = (
    0.9  # of the lease duration: without a renewal the holder stops by then, before another may start
)


class LeaseLost(Exception):
    """The Lease could not be renewed in time; its holder must stop at once."""


class LeaseExpired(Unavailable):
    """Another process may hold the Lease by now, so nothing is written any more."""


class LeaderElectionOptions(Struct, frozen=True, kw_only=True):
    """The flags of leader election, under upstream's names."""

    leader_election: Annotated[
        bool, about("run only while holding a Lease; one of several replicas works")
    ] = False
    leader_election_namespace: Annotated[
        str, about("namespace of the Lease; default: the pod's", value="NAMESPACE")
    ] = ""
    leader_election_lease_duration: Annotated[
        Duration, about("time without a renewal before another replica takes over")
    ] = 15.0
    leader_election_renew_deadline: Annotated[
        Duration, about("time without a successful renewal before the leader stops")
    ] = 10.0
    leader_election_retry_period: Annotated[Duration, about("interval between attempts to get the Lease")] = (
        5.0
    )
    leader_election_labels: Annotated[Mapping[str, str], about("labels of the Lease")] = {}

    def __post_init__(self) -> None:
        if not self.leader_election:
            return
        if self.leader_election_lease_duration <= self.leader_election_renew_deadline:
            raise ValueError("leaseDuration must be greater than renewDeadline")
        if self.leader_election_renew_deadline <= self.leader_election_retry_period * JITTER:
            raise ValueError("renewDeadline must be greater than retryPeriod*JitterFactor")


async def lead(
    client: Client,
    settings: LeaderElectionOptions,
    lease: str,
    body: Callable[[], Awaitable[None]],
    *,
    identity: str,
    namespace: str,
) -> None:
    """Run `body` at once, or as leader if leader election is enabled."""
    if not settings.leader_election:
        return await body()
    await run_as_leader(
        Client(client.transport, component=client.component),
        lease,
        settings.leader_election_namespace or namespace,
        identity,
        body,
        duration=settings.leader_election_lease_duration,
        renew=settings.leader_election_renew_deadline,
        retry=settings.leader_election_retry_period,
        labels=dict(settings.leader_election_labels),
        guarded=client,
    )


async def run_as_leader(
    client: Client,
    lease_name: str,
    namespace: str,
    identity: str,
    body: Callable[[], Awaitable[None]],
    *,
    duration: float = 15.0,
    renew: float = 10.0,
    retry: float = 5.0,
    labels: dict[str, str] | None = None,
    release: bool = True,
    guarded: Client | None = None,
) -> None:
    """Acquire the Lease, run `body` while holding it, release it. Raises LeaseLost.

    A process that was paused longer than its Lease lasts goes on somewhere in `body`: from then on `guarded`,
    the client that `body` uses, refuses to write.
    """
    elector = LeaderElector(client, lease_name, namespace, identity, duration, renew, retry, labels or {})
    log.info("attempting to acquire leader lease %s/%s...", namespace, lease_name)
    await elector.acquire()
    log.info("successfully acquired lease %s/%s", namespace, lease_name)
    if guarded is not None:
        guarded.check_write = elector.check_held
    try:
        async with EventRecorder(client, identity) as events:
            events.normal(elector.lease, "LeaderElection", f"{identity} became leader")
            await _lead(elector, body)
    finally:
        if guarded is not None:
            guarded.check_write = None
        if release and not elector.lost:
            await elector.release()


async def _lead(elector: LeaderElector, body: Callable[[], Awaitable[None]]) -> None:
    """Run the body and the renewal until one of them ends."""
    work = asyncio.ensure_future(body())
    renewal = asyncio.ensure_future(elector.renew_until_lost())
    try:
        await asyncio.wait((work, renewal), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (work, renewal):
            task.cancel()
        await asyncio.wait((work, renewal))
    for task in (work, renewal):
        if not task.cancelled():
            task.result()


class LeaderElector:
    def __init__(
        self,
        client: Client,
        name: str,
        namespace: str,
        identity: str,
        duration: float,
        renew: float,
        retry: float,
        labels: dict[str, str],
    ) -> None:
        self.client, self.name, self.namespace, self.identity = client, name, namespace, identity
        self.duration, self.renew, self.retry, self.labels = duration, renew, retry, labels
        self.lost = False
        self._held: Lease | None = None
        self._renewed_at = 0.0  # when the last successful renewal was requested
        self._seen: LeaseSpec | None = None  # the record as last observed,
        self._seen_at = 0.0  # and when it last changed
        self._watching = False  # whether a watch delivers every change
        self._sent = ""  # renewTime of the last record sent

    @property
    def lease(self) -> Lease:
        assert self._held is not None
        return self._held

    async def acquire(self) -> None:
        turn = asyncio.Event()
        watcher = asyncio.create_task(self._watch(turn), name=f"lease {self.name}")
        try:
            while True:
                turn.clear()
                if await self._try():
                    return
                await self._wait(turn)
        finally:
            await cancel_and_wait(watcher)

    async def _wait(self, turn: asyncio.Event) -> None:
        """Wait until an attempt may succeed, or until it is time to read the Lease."""
        while not turn.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._wait_seconds()):
                    await turn.wait()
            if not self._watching or clock.now() >= self._expires():
                return

    def _wait_seconds(self) -> float:
        """Seconds until the Lease expires as far as it is known; less without a watch."""
        left = self._expires() - clock.now()
        if left > 0 and self._watching:
            return left
        usual = self.retry * random.uniform(1.0, JITTER)
        return min(usual, left) if left > 0 else usual

    def _expires(self) -> float:
        seconds = (self._seen.lease_duration_seconds if self._seen else None) or self.duration
        return self._seen_at + seconds

    async def _watch(self, turn: asyncio.Event) -> None:
        while True:
            began = clock.now()
            with suppress(APIError, TimeoutError):
                await self._listen(turn)
            # A watch that ran for a while is restarted at once, so that no renewal is missed.
            await asyncio.sleep(max(0.0, began + self.retry - clock.now()))

    async def _listen(self, turn: asyncio.Event) -> None:
        try:
            async for change in self.client.watch(Lease, self.namespace, fields=f"metadata.name={self.name}"):
                self._watching = True
                if change.object is None:
                    continue
                self._observe(change.object.spec)
                if change.type is ChangeType.DELETED or not self._is_held_by_other(change.object.spec):
                    turn.set()
        finally:
            self._watching = False
            turn.set()

    async def renew_until_lost(self) -> None:
        """Renew until renewals fail for too long. Raises LeaseLost."""
        while True:
            await asyncio.sleep(self.retry)
            try:
                async with asyncio.timeout_at(self._deadline()):
                    await self._renew()
            except TimeoutError:
                self.lost = True
                log.error("failed to renew lease %s/%s: leader election lost", self.namespace, self.name)
                raise LeaseLost(f"lease {self.namespace}/{self.name} lost") from None

    def check_held(self) -> None:
        """Raises LeaseExpired if another process may hold the Lease."""
        if clock.now() >= self._expiry:
            raise LeaseExpired(f"lease {self.namespace}/{self.name} was not renewed in time")

    @property
    def _expiry(self) -> float:
        """When this holder stops at the latest."""
        return self._renewed_at + LEASE_SHARE * self._lease_seconds()

    def _deadline(self) -> float:
        return min(clock.now() + self.renew, self._expiry)

    def _lease_seconds(self) -> float:
        """The duration in the Lease, which has whole seconds."""
        return int(self.duration) or self.duration

    async def _renew(self) -> None:
        while True:
            if await self._try():
                return
            await asyncio.sleep(self.retry * random.uniform(1.0, JITTER))

    async def _try(self) -> bool:
        """One attempt to acquire or renew the Lease."""
        try:
            async with asyncio.timeout(CALL_TIMEOUT):
                return await self._acquire_or_renew()
        except (APIError, TimeoutError) as error:
            if not isinstance(error, (Conflict, AlreadyExists)):
                log.warning("lease %s/%s: %s", self.namespace, self.name, error)
            self._held = None  # it may be stale: read it again
            return False

    async def _acquire_or_renew(self) -> bool:
        lease = self._held or await self._find()
        asked = clock.now()
        if lease is None:
            metadata = ObjectMeta(name=self.name, namespace=self.namespace, labels=self.labels)
            self._note_held(
                await self.client.create(Lease(metadata=metadata, spec=self._new_spec(None))), asked
            )
            return True
        self._observe(lease.spec)
        if self._is_held_by_other(lease.spec):
            return False
        self._note_held(
            await self.client.update(structs.replace(lease, spec=self._new_spec(lease.spec))), asked
        )
        return True

    async def _find(self) -> Lease | None:
        return await self.client.find(Lease, self.name, self.namespace)

    def _is_held_by_other(self, spec: LeaseSpec) -> bool:
        holder = spec.holder_identity or ""
        return holder not in ("", self.identity) and clock.now() < self._expires()

    def _observe(self, spec: LeaseSpec) -> None:
        if spec == self._seen:
            return
        holder = spec.holder_identity or ""
        if holder not in ("", self.identity, self._seen.holder_identity if self._seen else ""):
            log.info("lease %s/%s: %s leads", self.namespace, self.name, holder)
        self._seen, self._seen_at = spec, clock.now()

    def _note_held(self, lease: Lease, asked: float) -> None:
        self._held, self._renewed_at = lease, asked
        self._observe(lease.spec)

    def _new_spec(self, before: LeaseSpec | None) -> LeaseSpec:
        self._sent = now = clock.microstamp()
        is_own = before is not None and before.holder_identity == self.identity
        moves = ((before.lease_transitions or 0) + (not is_own)) if before else 0
        return LeaseSpec(
            holder_identity=self.identity,
            lease_duration_seconds=int(self.duration),
            acquire_time=(before.acquire_time if is_own and before else None) or now,
            renew_time=now,
            lease_transitions=moves,
        )

    async def release(self) -> None:
        """Release the Lease so that the next one need not wait. Best effort: otherwise it expires."""
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT):
                await self._release()
        except (APIError, TimeoutError) as error:
            log.warning("lease %s/%s not released: %s", self.namespace, self.name, error)

    async def _release(self) -> None:
        if self._held is not None:
            with suppress(Conflict):  # a cancelled renewal was written nevertheless
                return await self._clear_holder(self._held)
        lease = await self._find()
        if (
            lease is not None
            and lease.spec.holder_identity == self.identity
            and self._is_own_write(lease.spec)
        ):
            await self._clear_holder(lease)

    def _is_own_write(self, spec: LeaseSpec) -> bool:
        """Whether we wrote the record: a new process with our identity may hold the Lease by now."""
        return spec.renew_time == self._sent

    async def _clear_holder(self, lease: Lease) -> None:
        now = clock.microstamp()
        spec = structs.replace(
            lease.spec, holder_identity="", lease_duration_seconds=1, renew_time=now, acquire_time=now
        )
        await self.client.update(structs.replace(lease, spec=spec))
