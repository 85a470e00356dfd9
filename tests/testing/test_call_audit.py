"""What recorded calls add up to."""

from __future__ import annotations

import json

from volplane.csi.call_interceptor import CsiCall
from volplane.testing import call_audit
from volplane.testing.call_audit import Inventory


def call(
    method: str, start: float, end: float, request: object, response: object = None, code: str = "OK"
) -> CsiCall:
    text = json.dumps(response) if response is not None else ""
    return CsiCall(1, method, "me", "here", json.dumps(request), start, end, code, text)


def publish(
    node: str, start: float, end: float, mode: str = "SINGLE_NODE_WRITER", code: str = "OK"
) -> CsiCall:
    how = {"access_mode": {"mode": mode}}
    request = {"volume_id": "v", "node_id": node, "volume_capability": how}
    return call("ControllerPublishVolume", start, end, request, {}, code)


def unpublish(node: str, start: float, end: float, code: str = "OK") -> CsiCall:
    request = {"volume_id": "v", **({"node_id": node} if node else {})}
    return call("ControllerUnpublishVolume", start, end, request, {}, code)


def words(*calls: CsiCall) -> list[str]:
    return [wrong.what for wrong in call_audit.audit_calls(calls)]


def test_a_volume_that_moves_is_never_in_two_places() -> None:
    assert words(publish("a", 0, 1), unpublish("a", 2, 3), publish("b", 4, 5)) == []


def test_a_volume_in_two_places_is_told() -> None:
    assert words(publish("a", 0, 1), publish("b", 2, 3)) == ["v was attached to a and b at once"]


def test_a_volume_for_many_may_be_with_many() -> None:
    mode = "MULTI_NODE_MULTI_WRITER"
    assert words(publish("a", 0, 1, mode), publish("b", 2, 3, mode)) == []


def test_an_attach_without_an_answer_accuses_nobody() -> None:
    assert words(publish("a", 0, 1, code="UNAVAILABLE"), publish("b", 2, 3)) == []


def test_a_detach_counts_from_when_it_was_asked_for() -> None:
    assert words(publish("a", 0, 1), unpublish("a", 2, 9, "UNAVAILABLE"), publish("b", 3, 4)) == []


def test_a_detach_from_everywhere() -> None:
    assert words(publish("a", 0, 1), unpublish("", 2, 3), publish("b", 3, 4)) == []


def test_one_name_is_one_volume() -> None:
    def made(id: str, at: float) -> CsiCall:
        return call("CreateVolume", at, at + 1, {"name": "pvc-1"}, {"volume": {"volume_id": id}})

    assert words(made("x", 0), made("x", 2)) == []
    assert words(made("x", 0), made("y", 2)) == ["pvc-1 was created 2 times: x, y"]


def test_volumes_are_known_by_the_name_that_was_asked_for_and_by_their_id() -> None:
    answered = call("CreateVolume", 0, 1, {"name": "pvc-1"}, {"volume": {"volume_id": "x"}})
    lost = call("CreateVolume", 2, 3, {"name": "pvc-2"}, code="UNAVAILABLE")
    assert call_audit.requested_volumes([answered, lost, publish("a", 4, 5)]) == {"pvc-1", "x", "pvc-2"}


def test_what_was_there_before_is_not_left() -> None:
    before = Inventory(mounts=frozenset({"/a"}), volumes=frozenset({"v"}))
    after = Inventory(mounts=frozenset({"/a", "/b"}), volumes=frozenset(), snapshots=frozenset({"s"}))
    assert [(w.what.split()[0], w.section) for w in after.leftovers_since(before)] == [
        ("/b", "NodeUnstageVolume"),
        ("s", "DeleteSnapshot"),
    ]
