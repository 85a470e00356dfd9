"""The heartbeat interval of nodes, and the grace period before they are marked Unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from volplane.apiserver.auth.certificates import CertificateAuthority
from volplane.cluster.data_directory import DataDirectory, SavedCluster
from volplane.cluster.single_process import HEARTBEATS, ClusterOptions, node_options
from volplane.node.options import NodeOptions


def settings_of(tmp_path: Path, grace: float) -> NodeOptions:
    member = DataDirectory(tmp_path).member(1, 1)
    memory = SavedCluster(kubelet_ports={member.name: 20_001})
    return node_options(
        CertificateAuthority(tmp_path / "pki"),
        member,
        memory,
        ClusterOptions(node_monitor_grace_period=grace),
    )


@pytest.mark.parametrize("grace", [1.0, 8.0, 20.0])
def test_a_node_with_little_time_speaks_more_often(tmp_path: Path, grace: float) -> None:
    node = settings_of(tmp_path, grace)
    assert node.node_status_update_frequency * HEARTBEATS <= grace
    assert node.node_lease_duration == grace


@pytest.mark.parametrize("grace", [40.0, 300.0])
def test_a_patient_cluster_hears_its_nodes_as_often_as_ever(tmp_path: Path, grace: float) -> None:
    node = settings_of(tmp_path, grace)
    assert node.node_status_update_frequency == NodeOptions().node_status_update_frequency
    assert node.node_lease_duration == NodeOptions().node_lease_duration
