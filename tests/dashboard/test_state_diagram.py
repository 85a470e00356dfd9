"""The state diagrams: every object is in one of the states that are drawn."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from tests.controllers import objects
from tests.explain.explain_objects import bound_pair, change
from volplane.api import codec
from volplane.api.storage import VolumeAttachment
from volplane.dashboard.views.state_diagram import DIAGRAMS, draw_states, list_related, present_state

CLAIM, VOLUME = bound_pair("data", "pv-1")
DELETING = {"deletionTimestamp": "2026-05-04T03:00:00Z"}


def attachment(attached: bool, *, deleting: bool = False, **errors: Any) -> VolumeAttachment:
    metadata = {"name": "va"} | (DELETING if deleting else {})
    return codec.convert(
        VolumeAttachment, {"metadata": metadata, "spec": {}, "status": {"attached": attached, **errors}}
    )


@pytest.mark.parametrize(
    ("obj", "state"),
    [
        (objects.claim("new"), "Pending"),
        (CLAIM, "Bound"),
        (change(CLAIM, status={"phase": "Lost"}), "Lost"),
        (change(CLAIM, metadata=DELETING), "Terminating"),
        (change(VOLUME, status={"phase": ""}), "Available"),
        (change(VOLUME, status={"phase": "Pending"}), "Available"),
        (VOLUME, "Bound"),
        (change(VOLUME, status={"phase": "Released"}), "Released"),
        (change(VOLUME, status={"phase": "Failed"}), "Failed"),
        (attachment(False), "attaching"),
        (attachment(False, attachError={"message": "no"}), "attach fails"),
        (attachment(True), "attached"),
        (attachment(True, deleting=True), "detaching"),
        (attachment(True, deleting=True, detachError={"message": "no"}), "detach fails"),
    ],
)
def test_the_present_state_is_marked(obj: Any, state: str) -> None:
    assert present_state(obj) == state
    diagram = DIAGRAMS[type(obj)]
    assert state in {each.name for each in diagram.states}
    picture = ElementTree.fromstring(draw_states(diagram, state, "x"))
    marked = [g for g in picture.iter("g") if "present" in g.get("class", "").split()]
    assert ["".join(g.itertext()) for g in marked] == [state]
    assert picture.get("aria-label", "").endswith(f"Now: {state}.")


@pytest.mark.parametrize("diagram", DIAGRAMS.values(), ids=lambda diagram: str(diagram.title))
def test_every_arrow_connects_two_states_and_every_state_is_reached(diagram: Any) -> None:
    names = {state.name for state in diagram.states}
    assert {name for arrow in diagram.arrows for name in (arrow.start, arrow.end)} == names


def test_claim_volume_and_attachments_stand_in_this_order() -> None:
    attached = attachment(True)
    assert list_related([objects.pod("web"), attached, VOLUME, CLAIM]) == [CLAIM, VOLUME, attached]
