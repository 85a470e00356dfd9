"""The view of desired and actual state: what controllers and kubelets want, have, and do next."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from volplane.api.core import Node, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.storage import VolumeAttachment
from volplane.base.markup import Content, Markup, tag, words
from volplane.dashboard.fragments import ROOT, Fragments, slot
from volplane.dashboard.live_view import View
from volplane.dashboard.observer import ClusterObserver
from volplane.dashboard.page_request import PageRequest
from volplane.dashboard.pieces import (
    Tone,
    badge,
    choice,
    choose_part,
    count,
    empty,
    filter_form,
    moment,
    object_link,
    pager,
    take,
    unknowns,
)
from volplane.dashboard.views.cluster import wake_for
from volplane.explain.state_of_world import NODE, RoleStates, StateReport, report_states
from volplane.loops.volume_states import ATTACH_DETACH_ROLE, ComparedVolume, PendingStep, StateComparison
from volplane.loops.wait_reports import Question

KINDS = (Node, Pod, PersistentVolumeClaim, PersistentVolume, VolumeAttachment)
SHOWN = (("", "All"), ("pending", "To do"))
PAGE_SIZE = 40  # volumes of one role
COUNT, UNKNOWN = "states-count", "unknown"


class StatesView(View):
    title = "Desired and actual"

    def __init__(self, observer: ClusterObserver, page: PageRequest) -> None:
        super().__init__()
        self._observer, self._page = observer, page

    async def open(self, wake: Callable[[], None]) -> None:
        for type in KINDS:
            await self._observer.cache(type)
        self.following.enter_context(self._observer.subscribe(KINDS, lambda old, new: wake()))
        self.following.callback(self._observer.feed.subscribe(lambda spans: wake_for(spans, wake)))

    async def render(self) -> Fragments:
        report = await self._read()
        wanted = self._page.parameter("q").strip().lower()
        roles = [_select(role, wanted, self._page.parameter("show")) for role in report.roles]
        shown = [(role, volumes) for role, volumes in roles if volumes or (not wanted and role.unknown)]
        known = {volume.name for volume in (await self._observer.cache(PersistentVolume)).all()}
        sections = {_section_id(role): _section(self._page, role, volumes, known) for role, volumes in shown}
        pending = [v.pending for role in report.roles for v in role.pending]
        times = [step.next_try for step in pending if step is not None and step.next_try is not None]
        self.next_change = min((at for at in times if at > report.at), default=None)
        return {
            ROOT: _frame(self._page, list(sections)),
            COUNT: _render_count(report),
            UNKNOWN: unknowns(report.unknown, UNKNOWN),
            **sections,
        }

    async def _read(self) -> StateReport:
        answers = await self._observer.ask(Question.VOLUMES, StateComparison)
        state = await self._observer.freeze()
        try:
            return await report_states(state, answers)
        finally:
            await state.caches.close()


def _select(role: RoleStates, wanted: str, show: str) -> tuple[RoleStates, Sequence[ComparedVolume]]:
    """The volumes of a role that are shown: what is to be done first."""
    volumes = role.pending if show == "pending" else role.volumes
    if wanted and wanted not in role.role:
        volumes = [volume for volume in volumes if _matches(volume, wanted)]
    return role, sorted(volumes, key=lambda v: (v.pending is None, v.name, v.node, tuple(v.pods)))


def _matches(volume: ComparedVolume, wanted: str) -> bool:
    return any(wanted in name.lower() for name in (volume.volume, volume.name, volume.node, *volume.pods))


def _section_id(role: RoleStates) -> str:
    return f"role-{role.role}"


def _frame(page: PageRequest, sections: Sequence[str]) -> Markup:
    tools = tag(
        "div",
        filter_form(page, "volumes, pods, nodes"),
        choice(page, "show", SHOWN, page.parameter("show"), "Which volumes"),
        class_="tools",
    )
    nothing = "Desired and actual state agree." if page.parameter("show") else "Nothing to show."
    return tag(
        "div",
        tag("div", tag("div", tag("h1", "Desired and actual state"), slot(COUNT)), tools, class_="page-head"),
        slot(UNKNOWN),
        tag("div", *map(slot, sections), class_="roles") if sections else empty(nothing),
        id=ROOT,
    )


def _render_count(report: StateReport) -> Markup:
    volumes = sum(role.count for role in report.roles)
    pending = sum(len(role.pending) for role in report.roles)
    state = badge(Tone.BUSY, f"{pending} to do") if pending else badge(Tone.GOOD, "all states agree")
    items = [
        tag("li", count(len(report.roles), "role")),
        tag("li", count(volumes, "entry", "entries")),
        tag("li", state),
    ]
    return tag("ul", *items, id=COUNT, class_="summary", data_announce="Desired and actual state")


def _section(
    page: PageRequest, role: RoleStates, volumes: Sequence[ComparedVolume], known: Collection[str]
) -> Markup:
    """`known`: names of PersistentVolumes, which have a page."""
    parameter = f"page-{role.role}"
    part = choose_part(len(volumes), page.number(parameter), PAGE_SIZE)
    is_controller = role.role == ATTACH_DETACH_ROLE
    title: Content = "Attach/detach controller"
    if not is_controller:
        name = role.role.removeprefix(NODE)
        title = ["Kubelet of ", object_link(page, role.role, name)]
    heads = ("Volume", "Node" if is_controller else "Pod", "Desired", "Actual", "Next")
    table = tag(
        "table",
        tag("thead", tag("tr", *(tag("th", head, scope="col") for head in heads))),
        tag(
            "tbody",
            *(_row(page, volume, is_controller, volume.name in known) for volume in take(volumes, part)),
        ),
        class_="state-table",
    )
    return tag(
        "section",
        tag("h2", title, tag("span", _describe_source(role), class_="count")),
        role.unknown and tag("p", f"Not known: {role.unknown}", class_="note"),
        table if volumes else None,
        pager(page, part, len(volumes), "volumes", parameter),
        id=_section_id(role),
        class_="panel",
    )


def _describe_source(role: RoleStates) -> str:
    return count(role.count, "entry", "entries") if role.source != "none" else ""


def _row(page: PageRequest, volume: ComparedVolume, is_controller: bool, is_known: bool) -> Markup:
    places = [object_link(page, f"node/{volume.node}", volume.node)] if is_controller else _pods(page, volume)
    pods = tag("span", ", ".join(volume.pods), class_="dim") if is_controller and volume.pods else None
    return tag(
        "tr",
        tag(
            "th",
            object_link(page, f"pv/{volume.name}", volume.name) if is_known else volume.name,
            scope="row",
        ),
        tag("td", *places, " ", pods),
        tag("td", volume.desired or "-", data_label="desired"),
        tag("td", volume.actual or "-", data_label="actual"),
        tag("td", _render_pending(volume.pending)),
        class_=words("differs" if volume.pending is not None else ""),
    )


def _pods(page: PageRequest, volume: ComparedVolume) -> list[Content]:
    return [object_link(page, f"pod/{pod}", pod) if "/" in pod else pod for pod in volume.pods]


def _render_pending(pending: PendingStep | None) -> list[Content]:
    if pending is None:
        return [badge(Tone.GOOD, "agree")]
    parts: list[Content] = [tag("span", pending.text, class_="pending")]
    if pending.since is not None:
        parts += [" ", tag("span", moment(pending.since), class_="dim")]
    if pending.next_try is not None:
        parts += [" ", tag("span", "next try ", moment(pending.next_try), class_="dim")]
    return parts
