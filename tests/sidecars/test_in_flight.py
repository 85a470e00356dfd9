"""Open calls: found by uid and by name, and nothing is left of those that ended."""

from __future__ import annotations

from volplane.api.core import PersistentVolumeClaim
from volplane.api.meta import ObjectMeta
from volplane.sidecars.provisioner.controller.in_flight import InFlightCalls
from volplane.sidecars.provisioner.provision_request import ProvisionRequest


def claim(name: str, uid: str) -> PersistentVolumeClaim:
    return PersistentVolumeClaim(metadata=ObjectMeta(name=name, namespace="default", uid=uid))


def test_an_open_call_of_a_claim_that_was_replaced_is_found_by_the_name() -> None:
    attempts, order = InFlightCalls(), ProvisionRequest("d", "pvc-1", 1)
    attempts.begin(claim("data", "1"), order)
    attempts.begin(claim("data", "2"), order)
    attempts.begin(claim("other", "3"), order)
    assert [a.claim.uid for a in attempts.list_by_key("default/data")] == ["1", "2"]
    attempts.end("1")
    assert [a.claim.uid for a in attempts.list_by_key("default/data")] == ["2"]
    assert "1" not in attempts
    assert "2" in attempts


def test_ending_twice_or_what_never_began_is_nothing() -> None:
    attempts = InFlightCalls()
    attempts.begin(claim("data", "1"), ProvisionRequest("d", "pvc-1", 1))
    for uid in ("1", "1", "2"):
        attempts.end(uid)
    assert not attempts
    assert attempts.list_by_key("default/data") == []
    assert attempts.get("1") is None
