"""The configurations of sandboxes and containers, and what the kernel grants them."""

from __future__ import annotations

import json
import os
from ipaddress import IPv4Network
from pathlib import Path

import pytest
from msgspec import structs

from volplane.api.core import (
    Container,
    ContainerPort,
    Pod,
    PodDNSConfig,
    PodDNSConfigOption,
    PodSecurityContext,
    PodSpec,
    ResourceRequirements,
    SecurityContext,
    Sysctl,
)
from volplane.api.meta import ObjectMeta
from volplane.node.containers.base import CgroupLimits, ContainerDevice, ContainerSpec, Mount
from volplane.node.containers.cri import cgroups, cni, v1
from volplane.node.containers.cri.cni import make_network
from volplane.node.containers.cri.container_config import (
    MASKED_PATHS,
    make_container_config,
    make_resources,
)
from volplane.node.containers.cri.image_plan import StoredImage, bytes_to_free, choose_images
from volplane.node.containers.cri.labels import node_digest
from volplane.node.containers.cri.runtime import find_unknown_stop_signal
from volplane.node.containers.cri.runtime_info import (
    find_problem,
    read_cni_directories,
    read_systemd_cgroups,
)
from volplane.node.containers.cri.sandbox_config import (
    SandboxInputs,
    cgroup_parent,
    make_dns_config,
    make_sandbox_config,
)
from volplane.node.network.resolv_conf import ClusterDns, ResolvConf, parse_resolv_conf
from volplane.node.pods.cgroup_limits import make_limits, oom_score
from volplane.node.pods.environment import ContainerConfigError
from volplane.node.pods.security_context import check_image_user

INPUTS = SandboxInputs("/data/n/1", "web-0", "/data/n/1/logs/default_web-0_u1")
MACHINE = ResolvConf(("10.0.0.2",), ("example.com",), ("ndots:2", "edns0"))
GIB = 1 << 30


def make_pod(**spec: object) -> Pod:
    meta = ObjectMeta(name="web-0", namespace="default", uid="u-1", labels={"app": "web"})
    return Pod(metadata=meta, spec=PodSpec(**{"containers": (Container(name="main"),), **spec}))  # type: ignore[arg-type]


def test_a_sandbox_carries_its_pod_and_its_node() -> None:
    config = make_sandbox_config(make_pod(), 2, INPUTS)
    assert (config.metadata.name, config.metadata.attempt) == ("web-0", 2)
    assert config.hostname == "web-0"
    assert dict(config.labels) == {
        "app": "web",
        "io.kubernetes.pod.name": "web-0",
        "io.kubernetes.pod.namespace": "default",
        "io.kubernetes.pod.uid": "u-1",
        "volplane.io/node-root": "/data/n/1",
    }
    assert config.linux.cgroup_parent.startswith("/volplane/")
    assert config.linux.cgroup_parent.endswith("/podu-1")
    other = make_sandbox_config(make_pod(), 2, SandboxInputs("/data/n/2", "", ""))
    assert other.linux.cgroup_parent != config.linux.cgroup_parent
    # The runtime's names of sandboxes contain the uid: a copied data directory has the same pods.
    assert config.metadata.uid.startswith("u-1-")
    assert other.metadata.uid != config.metadata.uid


def test_a_slice_is_the_cgroup_of_a_runtime_with_systemd() -> None:
    config = make_sandbox_config(make_pod(), 0, SandboxInputs("/data/n/1", "", "", systemd_cgroups=True))
    assert config.linux.cgroup_parent.endswith("-podu_1.slice")


@pytest.mark.parametrize("hierarchies", [(), ("cpu", "memory", "systemd")], ids=["v2", "v1"])
@pytest.mark.parametrize("systemd", [False, True])
def test_the_cgroups_of_a_pod_are_removed_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hierarchies: tuple[str, ...], systemd: bool
) -> None:
    """cgroup v2 has one hierarchy, v1 several; a directory stands for each cgroup."""
    monkeypatch.setattr(cgroups, "CGROUPS", str(tmp_path))
    roots = [tmp_path / name for name in hierarchies] or [tmp_path]
    own, other, busy = (
        cgroups.find_path(cgroup_parent(uid, "/data/n/1", systemd=systemd)) for uid in ("u-1", "u-2", "u-3")
    )
    digest = node_digest("/data/n/1")
    assert own == (
        f"volplane.slice/volplane-{digest}.slice/volplane-{digest}-podu_1.slice"
        if systemd
        else f"volplane/{digest}/podu-1"
    )
    for root in roots:
        for path in (own, other, f"{busy}/container"):
            (root / path).mkdir(parents=True)
    cgroups.remove_pod("u-1", "/data/n/1")
    cgroups.remove_pod("u-3", "/data/n/1")  # not empty: it stays
    for root in roots:
        assert not (root / own).exists()
        assert (root / other).exists()
        assert (root / busy / "container").exists()
        (root / busy / "container").rmdir()
    for uid in ("u-2", "u-3"):
        cgroups.remove_pod(uid, "/data/n/1")
    cgroups.remove_node("/data/n/1")
    for root in roots:
        assert [path.name for path in root.iterdir() if path.name not in hierarchies] == []


def test_a_pod_in_the_hosts_namespaces_has_neither_host_name_nor_port_mappings() -> None:
    container = Container(name="main", ports=(ContainerPort(container_port=80, host_port=8080),))
    config = make_sandbox_config(
        make_pod(host_network=True, host_pid=True, containers=(container,)), 0, INPUTS
    )
    assert config.hostname == ""
    assert not config.port_mappings
    namespaces = config.linux.security_context.namespace_options
    assert (namespaces.network, namespaces.pid, namespaces.ipc) == (v1.NODE, v1.NODE, v1.POD)
    own = make_sandbox_config(make_pod(containers=(container,)), 0, INPUTS)
    assert [(p.container_port, p.host_port) for p in own.port_mappings] == [(80, 8080)]


def test_a_sandbox_has_the_pods_sysctls_and_groups() -> None:
    context = PodSecurityContext(
        sysctls=(Sysctl("net/ipv4/ping_group_range", "0 1"),), fs_group=7, supplemental_groups=(5,)
    )
    linux = make_sandbox_config(make_pod(security_context=context), 0, INPUTS).linux
    assert dict(linux.sysctls) == {"net.ipv4.ping_group_range": "0 1"}
    assert list(linux.security_context.supplemental_groups) == [5, 7]


def test_the_runtime_copies_the_machines_resolver_unless_the_pod_has_its_own() -> None:
    assert make_dns_config(make_pod(dns_policy="ClusterFirst"), MACHINE) is None
    own = PodDNSConfig(("1.1.1.1",), ("svc",), (PodDNSConfigOption("ndots", "5"),))
    merged = make_dns_config(make_pod(dns_policy="Default", dns_config=own), MACHINE)
    assert merged is not None
    assert list(merged.servers) == ["10.0.0.2", "1.1.1.1"]
    assert list(merged.searches) == ["example.com", "svc"]
    assert list(merged.options) == ["ndots:5", "edns0"]
    alone = make_dns_config(make_pod(dns_policy="None", dns_config=own), MACHINE)
    assert alone is not None
    assert list(alone.servers) == ["1.1.1.1"]


def test_a_sandbox_finds_the_names_of_the_cluster() -> None:
    inputs = structs.replace(INPUTS, cluster_dns=ClusterDns(("169.254.96.1",), "cluster.local"))
    config = make_sandbox_config(make_pod(dns_policy="ClusterFirst"), 0, inputs)
    assert list(config.dns_config.servers) == ["169.254.96.1"]
    assert list(config.dns_config.searches) == [
        "default.svc.cluster.local",
        "svc.cluster.local",
        "cluster.local",
    ]
    assert list(config.dns_config.options) == ["ndots:5"]


def test_a_resolv_conf_is_read() -> None:
    text = "# comment\nnameserver 10.0.0.2\nsearch a b\nsearch example.com\noptions ndots:2 edns0\n"
    assert parse_resolv_conf(text) == MACHINE


def test_a_container_has_its_mounts_devices_and_limits() -> None:
    spec = ContainerSpec(
        id="u-1_main_3",
        pod_uid="u-1",
        name="main",
        attempt=3,
        image="nginx",
        image_ref="sha256:1",
        log_path="/logs/main/3.log",
        mounts=(Mount("/a", "/b", readonly=True, propagation="rshared", recursive=True),),
        devices=(ContainerDevice("/dev/loop1", "/dev/xvda", "r"),),
        limits=CgroupLimits(cpu_shares=2, memory=GIB, oom_score_adj=1000),
        added_capabilities=("NET_ADMIN",),
        dropped_capabilities=("CAP_ALL",),
        seccomp_profile="/profiles/x.json",
        user=1,
        group=2,
    )
    config = make_container_config(spec, root="/data/n/1", log_directory="/logs")
    assert config.log_path == "main/3.log"
    assert config.image.image == "sha256:1"
    assert config.labels["volplane.io/container-id"] == "u-1_main_3"
    (mount,) = config.mounts
    assert (mount.host_path, mount.container_path, mount.readonly) == ("/a", "/b", True)
    assert mount.propagation == v1.PROPAGATION_BIDIRECTIONAL
    assert config.devices[0].permissions == "r"
    assert config.linux.resources.memory_limit_in_bytes == GIB
    security = config.linux.security_context
    assert list(security.capabilities.drop_capabilities) == ["ALL"]
    assert security.seccomp.localhost_ref == "/profiles/x.json"
    assert security.run_as_user.value == 1
    assert tuple(security.masked_paths) == MASKED_PATHS


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("", v1.RUNTIME_DEFAULT),
        ("SIGTERM", v1.SIGTERM),
        ("SIGRTMIN+1", v1.SIGRTMINPLUS1),
        ("SIGRTMAX-14", v1.SIGRTMAXMINUS14),
    ],
)
def test_the_stop_signal_is_passed_to_the_runtime(name: str, expected: int) -> None:
    spec = ContainerSpec(id="a_b_0", stop_signal=name, log_path="/logs/x")
    config = make_container_config(spec, root="", log_directory="/logs")
    assert config.stop_signal == expected
    kept = v1.ContainerStatus(annotations=config.annotations)
    assert find_unknown_stop_signal(kept) == name  # the runtime does not know the field
    kept.stop_signal = config.stop_signal
    assert find_unknown_stop_signal(kept) == ""


def test_a_privileged_container_sees_all_of_proc() -> None:
    spec = ContainerSpec(id="a_b_0", privileged=True, log_path="/logs/x")
    security = make_container_config(spec, root="", log_directory="/logs").linux.security_context
    assert not security.masked_paths
    assert security.seccomp.profile_type == v1.SecurityProfile.Unconfined


# --- resources


@pytest.mark.parametrize(
    ("requests", "limits", "expected"),
    [
        ({}, {}, CgroupLimits(cpu_shares=2, oom_score_adj=1000)),
        (
            {"cpu": "250m", "memory": "1Gi"},
            {"cpu": "500m", "memory": "2Gi"},
            CgroupLimits(256, 50_000, 100_000, 2 * GIB, 750),
        ),
        (
            {"cpu": "1", "memory": "1Gi"},
            {"cpu": "1", "memory": "1Gi"},
            CgroupLimits(1024, 100_000, 100_000, GIB, -997),
        ),
        ({}, {"cpu": "1m"}, CgroupLimits(2, 1000, 100_000, 0, 999)),
    ],
)
def test_limits_follow_the_containers_resources(
    requests: dict[str, str], limits: dict[str, str], expected: CgroupLimits
) -> None:
    container = Container(name="main", resources=ResourceRequirements(requests=requests, limits=limits))
    assert make_limits(make_pod(containers=(container,)), container, {"memory": "4Gi"}) == expected


def test_a_container_that_is_out_of_memory_ends_as_a_whole_with_cgroup_v2() -> None:
    assert dict(make_resources(CgroupLimits(), cgroup_v2=True).unified) == {"memory.oom.group": "1"}
    assert not make_resources(CgroupLimits(), cgroup_v2=False).unified


def test_a_critical_pod_is_not_killed_for_memory() -> None:
    assert oom_score(make_pod(priority=2_000_001_000), Container(name="main"), GIB) == -997


@pytest.mark.parametrize(
    ("chosen", "user", "user_name", "problem"),
    [
        (5, None, "", ""),
        (0, 5, "", "container's runAsUser breaks non-root policy"),
        (None, 5, "", ""),
        (None, 0, "", "container has runAsNonRoot and image will run as root"),
        (None, None, "", "container has runAsNonRoot and image will run as root"),
        (None, None, "web", "container has runAsNonRoot and image has non-numeric user (web)"),
    ],
)
def test_run_as_non_root_is_checked_with_the_images_user(
    chosen: int | None, user: int | None, user_name: str, problem: str
) -> None:
    container = Container(
        name="main", security_context=SecurityContext(run_as_non_root=True, run_as_user=chosen)
    )
    if not problem:
        check_image_user(make_pod(), container, user, user_name)
        return
    with pytest.raises(ContainerConfigError) as caught:
        check_image_user(make_pod(), container, user, user_name)
    assert str(caught.value).startswith(problem)
    assert str(caught.value).endswith('(pod: "web-0_default(u-1)", container: main)')


# --- the runtime about itself


def make_status(**conditions: bool) -> v1.StatusResponse:
    made = [
        v1.RuntimeCondition(type=name, status=status, reason="Why", message="text")
        for name, status in conditions.items()
    ]
    return v1.StatusResponse(status=v1.RuntimeStatus(conditions=made))


def test_a_runtime_that_is_not_ready_is_told_in_the_kubelets_words() -> None:
    assert find_problem(make_status(RuntimeReady=True, NetworkReady=True)) == ""
    network = "container runtime network not ready: NetworkReady=false reason:Why message:text"
    assert find_problem(make_status(RuntimeReady=True, NetworkReady=False)) == network
    both = find_problem(make_status(RuntimeReady=False, NetworkReady=False))
    assert both == f"[container runtime not ready: RuntimeReady=false reason:Why message:text, {network}]"


def test_the_verbose_status_of_containerd_is_read() -> None:
    handler = {"options": {"SystemdCgroup": True}}
    containerd = {"defaultRuntimeName": "runc", "runtimes": {"runc": handler}}
    config = json.dumps({"cni": {"binDir": "/usr/lib/cni", "confDir": "/own"}, "containerd": containerd})
    found = read_cni_directories({"config": config})
    assert (found.config, found.binaries) == ("/own", ("/usr/lib/cni",))
    assert read_systemd_cgroups({"config": config})
    for strange in ("{", "[]", "{}", '{"containerd": 1, "cni": 2}'):
        assert read_cni_directories({"config": strange}).config == "/etc/cni/net.d"
        assert not read_systemd_cgroups({"config": strange})


def test_the_default_network_needs_no_iptables() -> None:
    plain = make_network(IPv4Network("100.64.0.0/20"), masquerade=False, port_mappings=False)
    assert isinstance(plain["plugins"], list)
    assert [each["type"] for each in plain["plugins"]] == ["bridge"]
    assert plain["plugins"][0]["ipMasq"] is False


# --- images that may go


@pytest.mark.parametrize(("available", "expected"), [(20, 0), (16, 0), (15, 5), (0, 20)])
def test_images_go_only_above_the_high_threshold(available: int, expected: int) -> None:
    assert bytes_to_free(100, available, high=85, low=80) == expected
    assert bytes_to_free(100, available, high=100, low=80) == 0


def test_the_longest_unused_images_go_first_and_new_ones_stay() -> None:
    images = [
        StoredImage("new", 10, last_used=95, first_seen=95),
        StoredImage("used", 10, last_used=0, first_seen=0),
        StoredImage("old", 10, last_used=1, first_seen=0),
        StoredImage("older", 10, last_used=0, first_seen=0),
    ]

    def choose(needed: int) -> list[str]:
        return [i.id for i in choose_images(images, {"used"}, needed=needed, now=100, min_age=10)]

    assert choose(0) == []
    assert choose(5) == ["older"]
    assert choose(1000) == ["older", "old"]


def test_two_clusters_may_remove_the_bridge_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is gone between the look at its ports and the removal."""
    monkeypatch.setattr(cni, "BRIDGE", "vp-is-gone")
    monkeypatch.setattr(os, "listdir", lambda path: [])
    cni.remove_idle_bridge()
