"""Are the volumes of a placed pod there, on their way, or given up?"""

from __future__ import annotations

from typing import Any

import pytest

from volplane.api import codec
from volplane.api.annotations import BIND_COMPLETED_ANNOTATION, SELECTED_NODE_ANNOTATION
from volplane.api.core import Node, PersistentVolume, PersistentVolumeClaim
from volplane.scheduler.prebind import (
    BindingAborted,
    BindingInProgress,
    BindingReady,
    ClaimBinding,
    check_binding,
)

ZONE = "topology.kubernetes.io/zone"
NODE = codec.convert(Node, {"metadata": {"name": "n1", "labels": {ZONE: "a"}}})
HERE = {SELECTED_NODE_ANNOTATION: "n1"}
DONE = {BIND_COMPLETED_ANNOTATION: "yes"}
WAITS = BindingInProgress("c")


def claim(notes: dict[str, str], volume: str = "") -> PersistentVolumeClaim:
    metadata = {"namespace": "default", "name": "c", "uid": "u-c", "annotations": notes}
    return codec.convert(PersistentVolumeClaim, {"metadata": metadata, "spec": {"volumeName": volume}})


def volume(zone: str = "a", ref: str | None = "u-c") -> PersistentVolume:
    term = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}
    spec: dict[str, Any] = {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}
    if ref is not None:
        spec["claimRef"] = {"namespace": "default", "name": "c", "uid": ref}
    return codec.convert(PersistentVolume, {"metadata": {"name": "v"}, "spec": spec})


ELSEWHERE = 'pv "v" node affinity doesn\'t match node "n1": no matching NodeSelectorTerms'

CASES = {
    "nothing to wait for": ([], BindingReady()),
    "made and bound": ([ClaimBinding("c", claim(HERE | DONE, "v"), volume())], BindingReady()),
    "being made": ([ClaimBinding("c", claim(HERE))], WAITS),
    "pointed at, not marked": ([ClaimBinding("c", claim(HERE, "v"), volume())], WAITS),
    "the volume is not in the cache yet": ([ClaimBinding("c", claim(HERE | DONE, "v"))], WAITS),
    "given up by the provisioner": (
        [ClaimBinding("c", claim({"other": "note"}))],
        BindingAborted('provisioning failed for PVC "c"'),
    ),
    "another node was selected": (
        [ClaimBinding("c", claim({SELECTED_NODE_ANNOTATION: "n2"}))],
        BindingAborted('provisioning failed for PVC "c"'),
    ),
    "all notes are gone": (
        [ClaimBinding("c", claim({}))],
        BindingAborted('selectedNode annotation reset for PVC "c"'),
    ),
    "made elsewhere": ([ClaimBinding("c", claim(HERE, "v"), volume("b"))], BindingAborted(ELSEWHERE)),
    "promised": ([ClaimBinding("c", claim({}), volume(), assumed_volume="v")], WAITS),
    "promised and bound": (
        [ClaimBinding("c", claim(DONE, "v"), volume(), assumed_volume="v")],
        BindingReady(),
    ),
    "promised and taken back": (
        [ClaimBinding("c", claim({}), volume(ref=None), assumed_volume="v")],
        BindingAborted('ClaimRef got reset for pv "v"'),
    ),
    "promised and without a uid": (
        [ClaimBinding("c", claim({}), volume(ref=""), assumed_volume="v")],
        BindingAborted('ClaimRef got reset for pv "v"'),
    ),
    "the claim is gone": ([ClaimBinding("c", None)], BindingAborted('persistentvolumeclaim "c" not found')),
}


@pytest.mark.parametrize(("pairs", "state"), CASES.values(), ids=CASES.keys())
def test_progress(
    pairs: list[ClaimBinding], state: BindingReady | BindingInProgress | BindingAborted
) -> None:
    assert check_binding(NODE, pairs) == state
