"""Where a journey comes from: the recorded spans of a claim as they arrive, or the objects of the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import structs

from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.meta import Resource
from volplane.base.span_store import StoredSpan
from volplane.base.trace_context import trace_id
from volplane.client.live_caches import FrozenCaches
from volplane.dashboard.observer import ClusterObserver
from volplane.dashboard.page_request import PageNotFound
from volplane.explain.cluster_state import ClusterState
from volplane.explain.journey.collect import derive_journeys
from volplane.explain.journey.join import complete_traces, find_traces, join_journey, judge_outcome
from volplane.explain.journey.model import Journey, JourneyStep, StepSource
from volplane.explain.resolve import ExplainTarget, MissingName, UnsupportedKind, parse_target
from volplane.rules.trace_subjects import list_claim_names

KINDS = (PersistentVolumeClaim, PersistentVolume, Pod)
SEARCHED = ("pv/", "va/", "volume/", "pvc/")  # subjects of which a restarted process may not know the claim


def parse_subject(path: str) -> ExplainTarget:
    """`pvc/default/data` or `pv/name`. Raises PageNotFound."""
    kind, _, rest = path.partition("/")
    namespace, _, name = rest.rpartition("/")
    try:
        target = parse_target(f"{kind}/{name}", namespace)
    except (UnsupportedKind, MissingName) as error:
        raise PageNotFound(str(error)) from error
    return target


class SpanFollower:
    """The spans of one trace, kept up to date."""

    def __init__(self, observer: ClusterObserver, trace: str) -> None:
        self.trace = trace
        self._feed = observer.feed
        self._spans: dict[str, StoredSpan] = {}
        self._subjects: set[str] = set()
        self._journey: Journey | None = None
        self._end: Callable[[], None] = lambda: None

    async def open(self, on_change: Callable[[], None]) -> None:
        def on_spans(spans: Sequence[StoredSpan]) -> None:
            if self._add(spans):
                on_change()

        self._end = self._feed.subscribe(on_spans)
        self._add(await self._feed.search([self.trace]))
        texts = [f'"{subject}"' for subject in sorted(self._subjects)]
        found = await self._feed.search(texts) if texts else []
        self._add(span for span in found if not span.span.traces)

    def _add(self, spans: Iterable[StoredSpan]) -> bool:
        """Keep those that belong to the trace; returns whether there are any."""
        is_changed = False
        for stored in spans:
            span = stored.span
            if self.trace in span.traces:
                if span.subject.startswith(SEARCHED) and not span.subject.endswith("/"):
                    self._subjects.add(span.subject)
            elif span.traces or span.subject not in self._subjects:
                continue
            known = self._spans.get(span.id)
            if span.id and known is not None and known.span.end:
                continue  # an announcement that is read after the end
            self._spans[span.id or f"{span.start}/{len(self._spans)}"] = stored
            is_changed = True
        if is_changed:
            self._journey = None
        return is_changed

    @property
    def journey(self) -> Journey | None:
        """What is recorded; None if nothing is."""
        if self._journey is None and self._spans:
            spans = sorted(self._spans.values(), key=lambda stored: stored.span.start)
            self._journey = join_journey(complete_traces(spans), self.trace)
        return self._journey

    def close(self) -> None:
        self._end()


class JourneySubject:
    """An object and its journey, which may not have begun yet."""

    def __init__(self, observer: ClusterObserver, target: ExplainTarget, trace: str = "") -> None:
        """`trace`: of an earlier object of that name; "": of the present or last one."""
        self.target = target
        self.traces: dict[str, str] = {}  # of all objects that had this name: trace → what to call it
        self._observer, self._wanted = observer, trace
        self._follower: SpanFollower | None = None
        self._on_change: Callable[[], None] = lambda: None

    async def open(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        for type in KINDS:
            await self._observer.cache(type)
        await self._follow_newest()

    async def _follow_newest(self) -> None:
        """Follow the trace of the object; another one if it was created again."""
        recorded = find_traces(await self._observer.feed.search([f'"{self.target.text}"']), self.target.text)
        present = await self._list_present_traces()
        self.traces = {trace: trace[:8] for trace in recorded} | present
        newest = next(iter(present), "") or (recorded or [""])[-1]
        trace = self._wanted if self._wanted in self.traces else newest
        if trace and (self._follower is None or self._follower.trace != trace):
            self.close()
            self._follower = SpanFollower(self._observer, trace)
            await self._follower.open(self._on_change)

    async def _list_present_traces(self) -> dict[str, str]:
        """The traces of the object that has this name now. A pod has one for each of its claims."""
        observer, target = self._observer, self.target
        cache = await observer.cache(target.type)
        obj = cache.get(target.name, target.namespace)
        match obj:
            case PersistentVolumeClaim():
                return {trace_id(obj.uid): "now"}
            case PersistentVolume():
                ref = obj.spec.claim_ref
                return {trace_id(ref.uid): "now"} if ref is not None and ref.uid else {}
            case Pod():
                claims = await observer.cache(PersistentVolumeClaim)
                found = (claims.get(name, obj.namespace) for name in list_claim_names(obj))
                traces = {trace_id(claim.uid): claim.name for claim in found if claim is not None}
                return traces or {trace_id(obj.uid): "now"}
        return {}

    async def read(self) -> Journey | None:
        """The journey as it is now; None if there is no such object, and was none."""
        await self._follow_newest_if_needed()
        recorded = self._follower.journey if self._follower is not None else None
        since = self._observer.feed.since
        if recorded is not None and since is None:
            return recorded
        derived = await self._derive()
        if recorded is None or derived is None:
            return recorded or derived
        assert since is not None
        return _put_before(derived, recorded, since.strftime("%H:%M:%S"))

    async def _follow_newest_if_needed(self) -> None:
        present = await self._list_present_traces()
        known = self._follower.trace if self._follower is not None else ""
        if not self._wanted and present and known not in present:
            await self._follow_newest()

    async def _derive(self) -> Journey | None:
        cache = await self._observer.cache(self.target.type)
        obj = cache.get(self.target.name, self.target.namespace)
        if obj is None or self._wanted:
            return None
        # Events of one namespace are taken from the cache that wakes this view, or they would come too late.
        async with FrozenCaches(self._observer.caches) as caches:
            journeys = await derive_journeys(ClusterState(caches), obj)
        return next(iter(journeys), None)

    @property
    def is_recorded(self) -> bool:
        """Whether all steps are recorded, so that nothing is derived from objects and events."""
        journey = self._follower.journey if self._follower is not None else None
        return journey is not None and self._observer.feed.since is None

    def is_about(self, obj: Resource) -> bool:
        """Whether a change of an object may change the journey, beside what is recorded."""
        target = self.target
        if isinstance(obj, target.type):
            return (obj.name, obj.namespace) == (target.name, target.namespace)
        return not self.is_recorded

    def close(self) -> None:
        if self._follower is not None:
            self._follower.close()
            self._follower = None


def _put_before(derived: Journey, recorded: Journey, since: str) -> Journey:
    """Steps from before the recording began are known from objects only."""
    first = recorded.steps[0].at
    earlier = [step for step in derived.steps if step.at < first and not _is_recorded(step, recorded)]
    if not earlier:
        return recorded
    steps = (*earlier, *recorded.steps)
    note = f"calls and durations before {since} UTC: steps are recorded since then"
    return structs.replace(
        recorded,
        steps=steps,
        outcome=judge_outcome(steps),
        began=steps[0].at,
        unknown=(note, *derived.unknown),
    )


def _is_recorded(step: JourneyStep, recorded: Journey) -> bool:
    """Times of objects are in whole seconds: a recorded step of this second is the same one, but exact."""
    return any(
        other.subject == step.subject and 0 <= (other.at - step.at).total_seconds() < 1
        for other in recorded.steps
        if other.source is StepSource.SPAN
    )
