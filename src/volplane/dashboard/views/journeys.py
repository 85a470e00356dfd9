"""The list of journeys: every claim with its present state and place, and claims that are deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from volplane.api.core import PersistentVolumeClaim
from volplane.base.markup import Content, Markup, tag
from volplane.base.span_store import StoredSpan
from volplane.dashboard.fragments import ROOT, Fragments, slot
from volplane.dashboard.grid import grid, grid_row
from volplane.dashboard.live_view import View
from volplane.dashboard.observer import ClusterObserver
from volplane.dashboard.page_request import PageRequest
from volplane.dashboard.pieces import (
    AGO,
    badge,
    choose_part,
    count,
    empty,
    filter_form,
    left_out,
    moment,
    object_link,
    pager,
    take,
    unknowns,
)
from volplane.dashboard.views.cluster import wake_for
from volplane.dashboard.views.cluster_facts import SHOWN, read_facts
from volplane.dashboard.views.cluster_picture import PlacedVolume, draw, natural_order
from volplane.explain.cluster_state import parse_time
from volplane.explain.journey.join import read_changes, to_datetime

PAGE_SIZE = 50
DELETED = '["exists","yes",""]'  # in the span of the write that removed an object
MOST_DELETED = 50
COUNT, PAGES, DELETED_CLAIMS, UNKNOWN = "claim-count", "claim-pages", "deleted", "unknown"
HEADS = ("Claim", "State", "Node", "Pods", "Size", "Created", "")


class ListedClaim(Struct, frozen=True):
    claim: PersistentVolumeClaim
    places: tuple[tuple[str, PlacedVolume], ...]  # node, "" in storage


class JourneyListView(View):
    title = "Journeys"

    def __init__(self, observer: ClusterObserver, page: PageRequest) -> None:
        super().__init__()
        self._observer, self._page = observer, page
        self._deleted: dict[str, StoredSpan] = {}
        self._hidden = 0  # older deleted claims that are not listed

    async def open(self, wake: Callable[[], None]) -> None:
        def on_spans(spans: Sequence[StoredSpan]) -> None:
            self._note_deleted(spans)
            wake_for(spans, wake)

        for type in SHOWN:
            await self._observer.cache(type)
        self.following.callback(self._observer.feed.subscribe(on_spans))
        self._note_deleted(await self._observer.feed.search([DELETED]))
        self.following.enter_context(self._observer.subscribe(SHOWN, lambda old, new: wake()))

    def _note_deleted(self, spans: Iterable[StoredSpan]) -> None:
        for stored in spans:
            span = stored.span
            is_write = span.subject.startswith("pvc/") and span.end and span.traces
            if is_write and any(c.field == "exists" and not c.after for c in read_changes(span)):
                self._deleted[span.traces[0]] = stored
        while len(self._deleted) > MOST_DELETED:
            del self._deleted[next(iter(self._deleted))]
            self._hidden += 1

    async def render(self) -> Fragments:
        page = self._page
        wanted = page.parameter("q").strip().lower()
        listed = [each for each in await self._list_claims() if not wanted or _matches(each, wanted)]
        part = choose_part(len(listed), page.number("page"), PAGE_SIZE)
        rows = {_row_id(each): _row(page, each) for each in take(listed, part)}
        deleted = [span for span in reversed(self._deleted.values()) if wanted in span.span.subject]
        return {
            ROOT: _frame(page, list(rows)),
            COUNT: tag("p", count(len(listed), "claim"), id=COUNT, class_="summary"),
            PAGES: tag("div", pager(page, part, len(listed), "claims"), id=PAGES),
            DELETED_CLAIMS: _render_deleted(page, deleted, self._hidden),
            UNKNOWN: unknowns(self._observer.list_unread(), UNKNOWN),
            **rows,
        }

    async def _list_claims(self) -> list[ListedClaim]:
        facts = await read_facts(self._observer)
        picture = draw(facts)
        places: dict[str, list[tuple[str, PlacedVolume]]] = {}
        for node in picture.nodes:
            for volume in node.volumes:
                places.setdefault(volume.subject, []).append((node.name, volume))
        for volume in picture.storage:
            places.setdefault(volume.subject, []).append(("", volume))
        claims = sorted(facts.claims, key=lambda claim: (claim.namespace, natural_order(claim.name)))
        return [ListedClaim(claim, tuple(places.get(f"pvc/{claim.key}", ()))) for claim in claims]


def _matches(listed: ListedClaim, wanted: str) -> bool:
    names: list[str] = [listed.claim.key, listed.claim.spec.volume_name]
    for node, volume in listed.places:
        names += [node, volume.state, *volume.pods]
    return any(wanted in name.lower() for name in names)


def _frame(page: PageRequest, rows: Sequence[str]) -> Markup:
    nothing = "No claim matches the filter." if page.parameter("q") else "There is no claim yet."
    tools = tag("div", filter_form(page, "claims, pods, nodes"), class_="tools")
    return tag(
        "div",
        tag("div", tag("div", tag("h1", "Journeys"), slot(COUNT)), tools, class_="page-head"),
        slot(UNKNOWN),
        grid("Claims", HEADS, rows, "claims") if rows else empty(nothing),
        slot(PAGES),
        slot(DELETED_CLAIMS),
        id=ROOT,
    )


def _row_id(listed: ListedClaim) -> str:
    return f"claim-{listed.claim.uid}"


def _row(page: PageRequest, listed: ListedClaim) -> Markup:
    claim, subject = listed.claim, f"pvc/{listed.claim.key}"
    states = {volume.state: None for _, volume in listed.places}
    nodes = [object_link(page, f"node/{node}", node) for node, _ in listed.places if node]
    pods = [
        object_link(page, f"pod/{claim.namespace}/{pod}", pod)
        for pod in dict.fromkeys(pod for _, volume in listed.places for pod in volume.pods)
    ]
    size = next((volume.size for _, volume in listed.places), "")
    return grid_row(
        _row_id(listed),
        [
            tag("a", claim.name, href=page.link(f"/journey/{subject}"), class_="name"),
            claim.namespace != "default" and tag("span", claim.namespace, class_="namespace"),
        ],
        [badge(state.tone, state) for state in states],
        tag("span", *_separate(nodes)),
        tag("span", *_separate(pods)),
        size,
        moment(parse_time(claim.metadata.creation_timestamp), AGO),
        tag("a", "Object", href=page.link(f"/object/{subject}")),
    )


def _separate(items: Sequence[Content]) -> Iterable[Content]:
    for number, item in enumerate(items):
        yield ", " if number else None
        yield item


def _render_deleted(page: PageRequest, deleted: Sequence[StoredSpan], hidden: int) -> Markup:
    if not deleted:
        return tag("section", id=DELETED_CLAIMS, hidden=True)
    items = [
        tag(
            "li",
            tag(
                "a",
                stored.span.subject.removeprefix("pvc/"),
                href=page.link(f"/journey/{stored.span.subject}", trace=stored.span.traces[0], show="all"),
            ),
            " ",
            tag("span", moment(to_datetime(stored.span.end), AGO), class_="dim"),
        )
        for stored in deleted
    ]
    heading = tag("h2", "Deleted", tag("span", len(deleted), class_="count"))
    rest = left_out(hidden, "claim") if hidden else None
    listed = tag("ul", *items, class_="columns")
    return tag("section", heading, listed, rest, id=DELETED_CLAIMS, class_="panel deleted")
