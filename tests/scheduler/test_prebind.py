"""Are the volumes of a placed pod there, on their way, or given up?"""

from __future__ import annotations

from typing import Any

import pytest

from volplane.api import codec
from volplane.api.core import Node, PersistentVolume, PersistentVolumeClaim
from volplane.rules.binding import BIND_COMPLETED, SELECTED_NODE
from volplane.scheduler.prebind import Aborted, Pair, Ready, Working, progress

ZONE = "topology.kubernetes.io/zone"
NODE = codec.convert(Node, {"metadata": {"name": "n1", "labels": {ZONE: "a"}}})
HERE = {SELECTED_NODE: "n1"}
DONE = {BIND_COMPLETED: "yes"}
WAITS = Working("waiting for the volume of claim c before going to n1")


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
    "nothing to wait for": ([], Ready()),
    "made and bound": ([Pair("c", claim(HERE | DONE, "v"), volume())], Ready()),
    "being made": ([Pair("c", claim(HERE))], WAITS),
    "pointed at, not marked": ([Pair("c", claim(HERE, "v"), volume())], WAITS),
    "the volume is not in the cache yet": ([Pair("c", claim(HERE | DONE, "v"))], WAITS),
    "given up by the provisioner": (
        [Pair("c", claim({"other": "note"}))],
        Aborted('provisioning failed for PVC "c"'),
    ),
    "another node was selected": (
        [Pair("c", claim({SELECTED_NODE: "n2"}))],
        Aborted('provisioning failed for PVC "c"'),
    ),
    "all notes are gone": ([Pair("c", claim({}))], Aborted('selectedNode annotation reset for PVC "c"')),
    "made elsewhere": ([Pair("c", claim(HERE, "v"), volume("b"))], Aborted(ELSEWHERE)),
    "promised": ([Pair("c", claim({}), volume(), promised="v")], WAITS),
    "promised and bound": ([Pair("c", claim(DONE, "v"), volume(), promised="v")], Ready()),
    "promised and taken back": (
        [Pair("c", claim({}), volume(ref=None), promised="v")],
        Aborted('ClaimRef got reset for pv "v"'),
    ),
    "promised and without a uid": (
        [Pair("c", claim({}), volume(ref=""), promised="v")],
        Aborted('ClaimRef got reset for pv "v"'),
    ),
    "the claim is gone": ([Pair("c", None)], Aborted('persistentvolumeclaim "c" not found')),
}


@pytest.mark.parametrize(("pairs", "state"), CASES.values(), ids=CASES.keys())
def test_progress(pairs: list[Pair], state: Ready | Working | Aborted) -> None:
    assert progress(NODE, pairs) == state
