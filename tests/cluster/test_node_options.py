"""The options of `up` that its nodes get."""

from __future__ import annotations

from pathlib import Path

import pytest

from volplane.apiserver.auth.certificates import CertificateAuthority
from volplane.cluster.data_directory import DataDirectory, SavedCluster
from volplane.cluster.single_process import NODE_OPTIONS, ClusterOptions, node_options
from volplane.node.options import NodeOptions


def test_nodes_get_the_image_options_of_the_cluster(tmp_path: Path) -> None:
    member = DataDirectory(tmp_path).member(1, 1)
    node = node_options(
        CertificateAuthority(tmp_path / "pki"),
        member,
        SavedCluster(kubelet_ports={member.name: 20_001}),
        ClusterOptions(
            serialize_image_pulls=False, max_parallel_image_pulls=3, minimum_image_ttl_duration=9.0
        ),
    )
    assert not node.serialize_image_pulls
    assert node.max_parallel_image_pulls == 3
    assert node.minimum_image_ttl_duration == 9.0


@pytest.mark.parametrize("name", sorted(set(NODE_OPTIONS) - {"volume_plugin_dir"}))  # made absolute by `up`
def test_an_option_has_the_same_default_on_a_cluster_and_on_a_node(name: str) -> None:
    assert getattr(ClusterOptions(), name) == getattr(NodeOptions(), name)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"image_gc_high_threshold": 101}, "--image-gc-high-threshold must be between 0 and 100, not 101"),
        ({"max_parallel_image_pulls": -1}, "--max-parallel-image-pulls must not be negative, not -1"),
        ({"container_log_max_files": 1}, "--container-log-max-files"),
    ],
)
def test_a_cluster_refuses_what_its_nodes_would_refuse(given: dict[str, int], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        ClusterOptions(**given)  # type: ignore[arg-type]
