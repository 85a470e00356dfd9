"""Where volumes may and should be made."""

from __future__ import annotations

import pytest

from volplane.api.core import Node, TopologySelectorLabelRequirement, TopologySelectorTerm
from volplane.api.meta import ObjectMeta
from volplane.api.storage import CSINode, CSINodeDriver, CSINodeSpec, StorageClass
from volplane.sidecars.provisioner.topology import (
    NoTopologyFound,
    SelectedNodeUnfit,
    TopologyTerms,
    build_terms,
    flatten,
    spread_hash,
)

DRIVER = "test.csi.example.com"
ZONE, RACK = "example.com/zone", "example.com/rack"
A, B, C = (((ZONE, zone),) for zone in "abc")


def nodes(**zones: str) -> dict[str, Node]:
    return {
        n: Node(metadata=ObjectMeta(name=n, labels={ZONE: z, "other": "x"} if z else {}))
        for n, z in zones.items()
    }


def csi_nodes(*names: str, keys: tuple[str, ...] = (ZONE,)) -> dict[str, CSINode]:
    drivers = (CSINodeDriver(name=DRIVER, node_id="i", topology_keys=keys),)
    return {n: CSINode(metadata=ObjectMeta(name=n), spec=CSINodeSpec(drivers=drivers)) for n in names}


def allowing(*zones: str) -> StorageClass:
    wanted = TopologySelectorLabelRequirement(key=ZONE, values=zones)
    return StorageClass(
        allowed_topologies=(TopologySelectorTerm(match_label_expressions=(wanted,)),) if zones else ()
    )


NODES = nodes(n1="b", n2="a", n3="c", n4="a", blank="")
CSI = csi_nodes("n1", "n2", "n3", "n4")


def build(
    claim: str = "x", selected: str = "", *zones: str, strict: bool = False, immediate: bool = True
) -> TopologyTerms:
    made = build_terms(
        claim, allowing(*zones), selected, NODES, CSI, DRIVER, strict=strict, immediate=immediate
    )
    assert made is not None
    return made


def test_the_selected_nodes_place_is_preferred_all_are_possible() -> None:
    assert build("x", "n1") == TopologyTerms((A, B, C), (B, C, A))


def test_strict_means_the_selected_nodes_place_and_no_other() -> None:
    assert build("x", "n3", strict=True) == TopologyTerms((C,), (C,))


def test_strict_and_allowed_must_agree() -> None:
    assert build("x", "n1", "b", "c", strict=True) == TopologyTerms((B,), (B,))
    with pytest.raises(NoTopologyFound, match="not in allowed topologies"):
        build("x", "n1", "a", "c", strict=True)


def test_the_class_narrows_the_choice() -> None:
    assert build("x", "n3", "c", "b") == TopologyTerms((B, C), (C, B))
    with pytest.raises(NoTopologyFound, match="not in requisite"):
        build("x", "n2", "b", "c")


def test_without_a_node_the_claims_name_decides_and_statefulsets_go_round() -> None:
    first = [build(f"data-web-{n}").preferred[0] for n in range(6)]
    assert sorted(first[:3]) == [A, B, C]
    assert first[3:] == first[:3]
    assert [build(f"logs-web-{n}").preferred[0] for n in range(6)] == first  # same member, same zone
    assert build("x").requisite == (A, B, C)


def test_without_immediate_topology_the_driver_chooses() -> None:
    assert build_terms("x", allowing(), "", NODES, CSI, DRIVER, immediate=False) is None
    assert build("x", "", "a", immediate=False) == TopologyTerms((A,), (A,))  # the class still counts
    assert build("x", "n1", immediate=False).preferred[0] == B


def test_a_node_without_a_registration_is_given_back() -> None:
    with pytest.raises(SelectedNodeUnfit, match="n9"):
        build("x", "n9")


@pytest.mark.parametrize(
    ("selected", "known", "there"),
    [
        ("n1", csi_nodes("n1", keys=()), NODES),  # no keys
        ("blank", csi_nodes("blank"), NODES),  # labels are missing
        ("", {}, NODES),  # registered nowhere
        ("", csi_nodes("n1"), nodes(blank="")),  # no node has the labels
    ],
)
def test_what_cannot_be_worked_out_now_is_tried_again(
    selected: str, known: dict[str, CSINode], there: dict[str, Node]
) -> None:
    with pytest.raises(NoTopologyFound):
        build_terms("x", allowing(), selected, there, known, DRIVER)


def test_allowed_topologies_are_flattened_to_every_combination() -> None:
    both = TopologySelectorTerm(
        match_label_expressions=(
            TopologySelectorLabelRequirement(key=ZONE, values=("b", "a")),
            TopologySelectorLabelRequirement(key=RACK, values=("1", "2")),
        )
    )
    single = TopologySelectorTerm(
        match_label_expressions=(TopologySelectorLabelRequirement(key=ZONE, values=("c",)),)
    )
    assert flatten((single, both, both)) == (
        ((RACK, "1"), (ZONE, "a")),
        ((RACK, "1"), (ZONE, "b")),
        ((RACK, "2"), (ZONE, "a")),
        ((RACK, "2"), (ZONE, "b")),
        ((ZONE, "c"),),
    )


@pytest.mark.parametrize(
    ("claim", "hashed", "ordinal"),
    [
        ("www-web-3", "web", 3),
        ("web-0", "web", 0),
        ("plain", "plain", 0),
        ("a-b", "a-b", 0),
        ("x-99999999999", "", 0),
    ],
)
def test_only_the_set_is_hashed_of_a_claim_that_looks_like_a_statefulsets(
    claim: str, hashed: str, ordinal: int
) -> None:
    value = 0x811C9DC5
    for byte in (hashed or claim).encode():
        value = (value * 0x01000193) & 0xFFFFFFFF ^ byte
    assert spread_hash(claim) == (value + ordinal) % 2**32
