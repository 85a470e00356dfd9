"""The states of a claim, a volume and an attachment as a diagram, with the present one marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.api.storage import VolumeAttachment
from volplane.base.markup import Markup, tag, words

WIDTH, HEIGHT, BOX, BOX_HEIGHT, TOP = 178, 74, 104, 34, 12  # pixels


class DiagramState(Struct, frozen=True):
    name: str
    column: int
    row: int = 0
    is_bad: bool = False


class DiagramArrow(Struct, frozen=True):
    start: str
    end: str
    label: str


class StateDiagram(Struct, frozen=True):
    title: str
    states: tuple[DiagramState, ...]
    arrows: tuple[DiagramArrow, ...]


PENDING, BOUND, LOST, TERMINATING, GONE = "Pending", "Bound", "Lost", "Terminating", "removed"
AVAILABLE, RELEASED, FAILED = "Available", "Released", "Failed"
ATTACHING, ATTACHED, DETACHING = "attaching", "attached", "detaching"
ATTACH_FAILS, DETACH_FAILS = "attach fails", "detach fails"

CLAIM = StateDiagram(
    "Claim",
    (
        DiagramState(PENDING, 0),
        DiagramState(BOUND, 1),
        DiagramState(LOST, 1, 1, is_bad=True),
        DiagramState(TERMINATING, 2),
        DiagramState(GONE, 3),
    ),
    (
        DiagramArrow(PENDING, BOUND, "bind"),
        DiagramArrow(BOUND, LOST, "volume gone"),
        DiagramArrow(BOUND, TERMINATING, "delete"),
        DiagramArrow(TERMINATING, GONE, "unused"),
    ),
)
VOLUME = StateDiagram(
    "Volume",
    (
        DiagramState(AVAILABLE, 0),
        DiagramState(BOUND, 1),
        DiagramState(RELEASED, 2),
        DiagramState(FAILED, 2, 1, is_bad=True),
        DiagramState(GONE, 3),
    ),
    (
        DiagramArrow(AVAILABLE, BOUND, "claimed"),
        DiagramArrow(BOUND, RELEASED, "claim gone"),
        DiagramArrow(RELEASED, FAILED, "cannot delete"),
        DiagramArrow(RELEASED, GONE, "disk deleted"),
    ),
)
ATTACHMENT = StateDiagram(
    "Attachment",
    (
        DiagramState(ATTACHING, 0),
        DiagramState(ATTACH_FAILS, 0, 1, is_bad=True),
        DiagramState(ATTACHED, 1),
        DiagramState(DETACHING, 2),
        DiagramState(DETACH_FAILS, 2, 1, is_bad=True),
        DiagramState(GONE, 3),
    ),
    (
        DiagramArrow(ATTACHING, ATTACHED, "published"),
        DiagramArrow(ATTACHING, ATTACH_FAILS, "error"),
        DiagramArrow(ATTACHED, DETACHING, "delete"),
        DiagramArrow(DETACHING, DETACH_FAILS, "error"),
        DiagramArrow(DETACHING, GONE, "unpublished"),
    ),
)
DIAGRAMS: Mapping[type[Any], StateDiagram] = {
    PersistentVolumeClaim: CLAIM,
    PersistentVolume: VOLUME,
    VolumeAttachment: ATTACHMENT,
}


def present_state(obj: Any) -> str:
    """The state of the diagram that an object is in."""
    match obj:
        case PersistentVolumeClaim():
            if obj.status.phase == LOST:
                return LOST
            return TERMINATING if obj.is_deleting else obj.status.phase or PENDING
        case PersistentVolume():
            return AVAILABLE if obj.status.phase in ("", PENDING) else obj.status.phase
        case VolumeAttachment():
            return _present_attachment(obj)
    return ""


def _present_attachment(attachment: VolumeAttachment) -> str:
    status = attachment.status
    if attachment.is_deleting:
        return DETACH_FAILS if status.detach_error is not None else DETACHING
    if status.attached:
        return ATTACHED
    return ATTACH_FAILS if status.attach_error is not None else ATTACHING


def draw_states(diagram: StateDiagram, present: str, name: str) -> Markup:
    """The diagram as a picture; its text alternative names the present state."""
    rows = 1 + max(state.row for state in diagram.states)
    places = {state.name: state for state in diagram.states}
    listed = ", ".join(state.name for state in diagram.states)
    width, height = WIDTH * 3 + BOX + 4, TOP + HEIGHT * (rows - 1) + BOX_HEIGHT + 6
    head = tag(
        "marker",
        tag("path", d="M0 0 8 4 0 8z"),
        id=f"tip-{diagram.title.lower()}-{name}",
        markerWidth=8,
        markerHeight=8,
        refX=7.5,
        refY=4,
        orient="auto",
        markerUnits="userSpaceOnUse",
        class_="tip",
    )
    return tag(
        "svg",
        tag("defs", head),
        [_draw_arrow(arrow, places, f"tip-{diagram.title.lower()}-{name}") for arrow in diagram.arrows],
        [_draw_state(state, state.name == present) for state in diagram.states],
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="img",
        aria_label=f"States of the {diagram.title.lower()}: {listed}. Now: {present}.",
        class_="states",
    )


def _corner(state: DiagramState) -> tuple[int, int]:
    return 2 + WIDTH * state.column, TOP + HEIGHT * state.row


def _draw_state(state: DiagramState, is_present: bool) -> Markup:
    x, y = _corner(state)
    return tag(
        "g",
        tag("rect", x=x, y=y, width=BOX, height=BOX_HEIGHT, rx=9),
        tag("text", state.name, x=x + BOX // 2, y=y + 22, text_anchor="middle"),
        class_=words("state", is_present and "present", state.is_bad and "bad"),
    )


def _draw_arrow(arrow: DiagramArrow, places: Mapping[str, DiagramState], tip: str) -> Markup:
    start, end = places[arrow.start], places[arrow.end]
    (x1, y1), (x2, y2) = _corner(start), _corner(end)
    if start.column == end.column:
        middle = x1 + BOX // 2
        line = tag("line", x1=middle, x2=middle, y1=y1 + BOX_HEIGHT, y2=y2 - 2, marker_end=f"url(#{tip})")
        text = tag("text", arrow.label, x=middle + 8, y=(y1 + BOX_HEIGHT + y2) // 2 + 4)
    else:
        y = y1 + BOX_HEIGHT // 2
        line = tag("line", x1=x1 + BOX, x2=x2 - 2, y1=y, y2=y, marker_end=f"url(#{tip})")
        text = tag("text", arrow.label, x=(x1 + BOX + x2) // 2, y=y - 6, text_anchor="middle")
    return tag("g", line, text, class_="edge")


def list_related(objects: Sequence[Any]) -> list[Any]:
    """Those that have a diagram: claim, volume, attachments, in this order."""
    order = list(DIAGRAMS)
    return sorted((o for o in objects if type(o) in DIAGRAMS), key=lambda o: order.index(type(o)))
