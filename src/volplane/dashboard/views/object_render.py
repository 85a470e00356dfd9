"""The page of one object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from volplane.api import kinds
from volplane.api.core import Node, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.storage import VolumeAttachment
from volplane.base.markup import Content, Markup, tag, words
from volplane.dashboard.fragments import ROOT, Fragments, slot
from volplane.dashboard.page_request import PageRequest
from volplane.dashboard.pieces import AGO, Tone, badge, empty, left_out, moment, object_link, unknowns
from volplane.dashboard.views.state_diagram import DIAGRAMS, draw_states, list_related, present_state
from volplane.dashboard.views.waiting import render_advice, render_steps
from volplane.explain.cluster_state import EventRecord, parse_time
from volplane.explain.finalizers import describe_finalizer
from volplane.explain.result import ExplainResult

if TYPE_CHECKING:
    from volplane.dashboard.views.objects import ShownObject

HEAD, STATES, ANSWER, FACTS, EVENTS, HISTORY, UNKNOWN = (
    "object-head",
    "object-states",
    "object-answer",
    "object-facts",
    "object-events",
    "object-history",
    "unknown",
)
WITH_JOURNEY = ("pvc/", "pv/", "pod/")
SUBJECTS: Mapping[type[Any], str] = {
    Node: "node",
    PersistentVolume: "pv",
    PersistentVolumeClaim: "pvc",
    Pod: "pod",
    VolumeAttachment: "va",
}


def render_missing(page: PageRequest, subject: str, has_journey: bool) -> Markup:
    link = tag("a", "its journey", href=page.link(f"/journey/{subject}", show="all"))
    text = (
        empty("It is shown as soon as it is created. If it was deleted, see ", link, ".")
        if has_journey
        else None
    )
    return tag(
        "div",
        tag("h1", f"There is no {subject}"),
        text or empty("It is shown as soon as it is created."),
        id=ROOT,
    )


def render(page: PageRequest, shown: ShownObject) -> Fragments:
    return {
        ROOT: tag(
            "div",
            slot(HEAD),
            slot(UNKNOWN),
            slot(ANSWER),
            slot(STATES),
            tag(
                "div",
                slot(FACTS),
                tag("div", slot(HISTORY), slot(EVENTS), class_="stack"),
                class_="object-columns",
            ),
            id=ROOT,
            class_="object-view",
        ),
        HEAD: _head(page, shown),
        ANSWER: _answer(shown.result),
        STATES: _states(page, shown.related),
        FACTS: _facts(page, shown),
        EVENTS: _events(shown.events, shown.hidden_events),
        HISTORY: _history(shown),
        UNKNOWN: unknowns(shown.unknown, UNKNOWN, "Not known"),
    }


def _head(page: PageRequest, shown: ShownObject) -> Markup:
    obj, links = shown.obj, list[Content]()
    if shown.subject.startswith(WITH_JOURNEY):
        links.append(tag("a", "Journey", href=page.link(f"/journey/{shown.subject}")))
    related = [subject_of(each) for each in shown.related]
    links += [object_link(page, subject) for subject in related if subject != shown.subject]
    state = badge(Tone.WARN, "Terminating") if obj.is_deleting else None
    return tag(
        "div",
        tag("div", tag("h1", shown.subject, " ", state), tag("p", *_separate(links), class_="summary")),
        id=HEAD,
        class_="page-head",
    )


def _separate(items: Sequence[Content]) -> Iterable[Content]:
    for number, item in enumerate(items):
        yield " · " if number else None
        yield item


def subject_of(obj: Any) -> str:
    """pvc/default/data"""
    return f"{SUBJECTS.get(type(obj)) or kinds.of(type(obj)).singular}/{obj.key}"


def _answer(result: ExplainResult) -> Markup:
    tone = Tone.WARN if result.waits else Tone.GOOD
    return tag(
        "section",
        tag(
            "p",
            badge(tone, "waits" if result.waits else "does not wait"),
            " ",
            result.answer,
            class_="answer",
        ),
        render_advice(result.advice) if result.waits else None,
        render_steps(result.steps) if result.steps else None,
        id=ANSWER,
        class_="panel",
        aria_label="Why it waits",
        data_announce="State",
    )


def _states(page: PageRequest, related: Sequence[Any]) -> Markup:
    shown = list_related(related)
    items = []
    for obj in shown:
        diagram = DIAGRAMS[type(obj)]
        subject = subject_of(obj)
        where = f" to {obj.spec.node_name}" if diagram.title == "Attachment" else ""
        items.append(
            tag(
                "figure",
                tag("figcaption", f"{diagram.title}{where} ", object_link(page, subject)),
                tag("div", draw_states(diagram, present_state(obj), obj.uid), class_="scroll", tabindex=0),
            )
        )
    return tag(
        "section", *items, id=STATES, class_="panel state-diagrams", aria_label="States", hidden=not items
    )


def _facts(page: PageRequest, shown: ShownObject) -> Markup:
    meta = shown.obj.metadata
    sections: list[Content] = [_definitions(_describe(page, shown.obj))]
    if meta.finalizers:
        sections.append(tag("h2", "Finalizers"))
        rows = []
        for name in meta.finalizers:
            who, when = describe_finalizer(name)
            rows.append((tag("dt", tag("code", name)), tag("dd", f"{who}: {when}")))
        sections.append(tag("dl", *rows, class_="stacked"))
    if meta.owner_references:
        owners = [
            tag(
                "li",
                object_link(
                    page, f"{ref.kind.lower()}/{meta.namespace}/{ref.name}", f"{ref.kind} {ref.name}"
                ),
                " (controller)" if ref.controller else "",
            )
            for ref in meta.owner_references
        ]
        sections += [tag("h2", "Owners"), tag("ul", *owners)]
    conditions = getattr(getattr(shown.obj, "status", None), "conditions", ()) or ()
    if conditions:
        sections += [tag("h2", "Conditions"), _conditions(conditions)]
    return tag("section", *sections, id=FACTS, class_="panel", aria_label="Facts")


def _describe(page: PageRequest, obj: Any) -> Iterable[tuple[str, Content]]:
    meta = obj.metadata
    yield "UID", tag("code", meta.uid)
    yield "Created", moment(parse_time(meta.creation_timestamp), AGO)
    if meta.deletion_timestamp:
        yield "Deleted", moment(parse_time(meta.deletion_timestamp), AGO)
    spec = obj.spec
    for name, text in (
        ("Class", getattr(spec, "storage_class_name", "")),
        ("Access", ", ".join(getattr(spec, "access_modes", ()) or ())),
        ("Policy", getattr(spec, "persistent_volume_reclaim_policy", "")),
        ("Attacher", getattr(spec, "attacher", "")),
    ):
        if text:
            yield name, text
    if getattr(spec, "csi", None) is not None:
        yield "Driver", spec.csi.driver
        yield "Disk", tag("code", spec.csi.volume_handle)
    if isinstance(obj, Pod):
        yield "Phase", obj.status.phase
    if node := getattr(spec, "node_name", ""):
        yield "Node", object_link(page, f"node/{node}", node)
    yield "Version", meta.resource_version


def _definitions(rows: Iterable[tuple[str, Content]]) -> Markup:
    return tag("dl", *((tag("dt", name), tag("dd", value)) for name, value in rows), class_="facts")


def _conditions(conditions: Sequence[Any]) -> Markup:
    rows = [
        tag(
            "tr",
            tag("th", each.type, scope="row"),
            tag("td", each.status),
            tag("td", " ".join(filter(None, (each.reason, each.message)))),
            tag("td", moment(parse_time(each.last_transition_time), AGO), class_="dim"),
        )
        for each in conditions
    ]
    return tag("table", tag("tbody", *rows), class_="plain")


def _events(events: Sequence[EventRecord], hidden: int) -> Markup:
    items = [
        tag(
            "li",
            tag(
                "span",
                badge(Tone.WARN if event.type == "Warning" else Tone.IDLE, event.reason),
                tag(
                    "span",
                    moment(event.at, AGO),
                    f" {event.count} times" if event.count > 1 else "",
                    class_="dim",
                ),
                class_="event-head",
            ),
            tag("span", event.message),
            class_=words("event", event.type == "Warning" and "warning"),
        )
        for event in events
    ]
    heading = tag("h2", "Events", tag("span", len(events) + hidden, class_="count"))
    return tag(
        "section",
        heading,
        tag("ul", *items, class_="events") if items else empty("No events."),
        left_out(hidden, "event") if hidden else None,
        id=EVENTS,
        class_="panel",
    )


def _argument(shown: ShownObject) -> str:
    """The object as an argument of a command: pvc/data -n default."""
    kind, namespace = shown.subject.partition("/")[0], shown.obj.namespace
    return f"{kind}/{shown.obj.name}" + (f" -n {namespace}" if namespace else "")


def _history(shown: ShownObject) -> Markup:
    rows = [
        tag(
            "tr",
            tag("td", f"{each.at:%H:%M:%S.%f}"[:12], class_="number"),
            tag("th", each.field, scope="row"),
            tag("td", each.before and tag("del", each.before), " → ", each.after and tag("ins", each.after)),
            tag("td", each.event, class_="dim"),
        )
        for each in reversed(shown.transitions)
    ]
    hidden = shown.hidden_transitions
    heading = tag("h2", "Changes of state", tag("span", len(rows) + hidden, class_="count"))
    rest = left_out(hidden, "change", tag("code", f"volplane states {_argument(shown)}")) if hidden else None
    table = tag("div", tag("table", tag("tbody", *rows), class_="plain changes"), class_="scroll", tabindex=0)
    return tag("section", heading, table, rest, id=HISTORY, class_="panel", hidden=not rows)
