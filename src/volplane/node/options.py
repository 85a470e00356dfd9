"""Options of a node: kubelet flags under their Kubernetes names, and some for many nodes per machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from ipaddress import IPv4Network, ip_address
from typing import Annotated

from msgspec import Struct

from volplane.api import names, quantity
from volplane.base.settings import Duration, about
from volplane.node.eviction import thresholds
from volplane.rules import sysctls
from volplane.volumes.flex.options import VOLUME_PLUGIN_DIR

CLIENT_CERTIFICATE_FILE = "kubelet-client-current.pem"  # certificate and key in one file, as in the kubelet
BRIDGE, HOST = "bridge", "host"
WEBHOOK, ALWAYS_ALLOW = AUTHORIZATION_MODES = ("Webhook", "AlwaysAllow")
MIN_LOG_SIZE = 64 << 10  # bytes: a few of the longest lines


class NodeOptions(Struct, frozen=True, kw_only=True):
    hostname_override: Annotated[
        str, about("name of the node; default: the machine's host name", value="NAME")
    ] = ""
    root_dir: Annotated[str, about("directory for volumes, plugin sockets and pods")] = "/var/lib/kubelet"
    own_paths: Annotated[
        bool, about("map /var/lib/kubelet to --root-dir, so that several nodes can share one machine")
    ] = True
    node_ip: Annotated[str, about("address of the node in its status")] = "127.0.0.1"
    enable_server: Annotated[bool, about("serve the kubelet API")] = True
    address: Annotated[
        str, about("address on which the kubelet API listens; default: --node-ip", value="ADDRESS")
    ] = ""
    port: Annotated[int, about("port of the kubelet API; 0 picks a free one")] = 10250
    anonymous_auth: Annotated[
        bool, about("accept requests to the kubelet API without credentials, as system:anonymous")
    ] = False
    authentication_token_webhook: Annotated[
        bool, about("let the API server review tokens of requests to the kubelet API")
    ] = True
    authentication_token_webhook_cache_ttl: Annotated[
        Duration, about("time for which a valid token is not reviewed again")
    ] = 120.0
    authorization_mode: Annotated[
        str, about("who may use the kubelet API: Webhook (the API server decides) or AlwaysAllow")
    ] = "Webhook"
    authorization_webhook_cache_authorized_ttl: Annotated[
        Duration, about("time for which a permission is not asked for again")
    ] = 300.0
    authorization_webhook_cache_unauthorized_ttl: Annotated[
        Duration, about("time for which a refusal is not asked for again")
    ] = 30.0
    cert_dir: Annotated[
        str, about("directory for the node's certificates; default: <root-dir>/pki", value="DIR")
    ] = ""
    rotate_certificates: Annotated[bool, about("renew the client certificate before it expires")] = True
    rotate_server_certificates: Annotated[
        bool, about("request a serving certificate from the cluster where --tls-cert-file is not set")
    ] = False
    tls_cert_file: Annotated[str, about("serving certificate of the kubelet API", value="FILE")] = ""
    tls_private_key_file: Annotated[str, about("key of the serving certificate", value="FILE")] = ""
    client_ca_file: Annotated[str, about("CA that signs the clients of the kubelet API", value="FILE")] = ""
    api_server_names: Annotated[
        tuple[str, ...],
        about("common names of client certificates that may use all of the kubelet API, without a review"),
    ] = ("kube-apiserver-kubelet-client", "kube-apiserver")
    node_labels: Annotated[Mapping[str, str], about("labels of the Node when it registers")] = {}
    zone: Annotated[str, about("zone of the node: label topology.kubernetes.io/zone", value="NAME")] = ""
    region: Annotated[str, about("region of the node: label topology.kubernetes.io/region", value="NAME")] = (
        ""
    )
    instance_id: Annotated[str, about("EC2 instance that this node runs on", value="ID")] = ""
    instance_type: Annotated[
        str, about("instance type: label node.kubernetes.io/instance-type", value="NAME")
    ] = ""
    provider_id: Annotated[str, about("providerID of the Node", value="ID")] = ""
    max_pods: Annotated[int, about("pods that the node accepts")] = 110
    seccomp_default: Annotated[
        bool, about("apply the seccomp profile RuntimeDefault to containers that name none")
    ] = False
    allowed_unsafe_sysctls: Annotated[
        tuple[str, ...],
        about("sysctls or patterns ending in * that pods may set beside the safe ones", value="NAMES"),
    ] = ()
    max_container_restart_period: Annotated[
        Duration, about("longest delay before a failed container restarts (CrashLoopBackOff)")
    ] = 300.0
    capacity: Annotated[Mapping[str, str], about("capacity to report instead of the machine's")] = {}
    enable_controller_attach_detach: Annotated[
        bool, about("let the attach/detach controller attach volumes for this node")
    ] = True
    node_status_update_frequency: Annotated[Duration, about("interval between heartbeats of the Lease")] = (
        10.0
    )
    node_lease_duration: Annotated[Duration, about("leaseDurationSeconds of the node's Lease")] = 40.0
    sync_frequency: Annotated[
        Duration, about("interval for republishing volumes of drivers with requiresRepublish")
    ] = 60.0
    claim_read_frequency: Annotated[
        Duration, about("interval for reading the claims of mounted volumes, to notice expansions")
    ] = 60.0
    volume_stats_agg_period: Annotated[
        Duration, about("interval between NodeGetVolumeStats calls; 0 disables them")
    ] = 60.0
    volume_plugin_dir: Annotated[
        str, about("directory with the executables of FlexVolume drivers", value="DIR")
    ] = VOLUME_PLUGIN_DIR
    feature_gates: Annotated[Mapping[str, bool], about("feature gates to switch on or off")] = {}
    csi_timeout: Annotated[
        Duration, about("timeout of one CSI call; after it the state of the volume is uncertain")
    ] = 120.0
    volume_retry_interval_max: Annotated[
        Duration, about("longest delay between retries of a failed mount; delays double from 500ms")
    ] = 122.0
    pod_mount_timeout: Annotated[
        Duration, about("time a pod waits for its volumes before FailedMount is reported")
    ] = 123.0
    token_max_age: Annotated[
        Duration, about("age at which a service account token is renewed; 80% of its lifetime if shorter")
    ] = 86_400.0
    ownership_notice: Annotated[
        Duration, about("time after which an event reports a slow ownership change (fsGroup)")
    ] = 30.0
    cluster_host: Annotated[
        str, about("KUBERNETES_SERVICE_HOST in containers; default: the API server's", value="ADDRESS")
    ] = ""
    cluster_port: Annotated[int, about("KUBERNETES_SERVICE_PORT in containers; 0: the API server's")] = 0
    cluster_dns: Annotated[
        tuple[str, ...],
        about("DNS servers of the cluster, for pods; default: the node answers itself", value="ADDRESSES"),
    ] = ()
    cluster_domain: Annotated[str, about("domain of the names of Services and pods")] = "cluster.local"
    service_cluster_ip_range: Annotated[
        str, about("range of the Services' addresses, as the API server has it")
    ] = "10.96.0.0/12"
    disk_service_port: Annotated[
        int, about("port of the machine's loopback at which pods reach the disk service, too; 0: none")
    ] = 0
    instance_metadata_port: Annotated[
        int,
        about(
            "port of the machine's loopback for EC2 instance metadata, which pods with their own network "
            "find at 169.254.169.254; 0: none"
        ),
    ] = 0
    container_runtime_endpoint: Annotated[
        str,
        about(
            "socket of the CRI runtime that runs containers, such as unix:///run/containerd/containerd.sock; "
            "without it they run as processes of this machine",
            value="ENDPOINT",
        ),
    ] = ""
    container_shell: Annotated[
        str,
        about(
            "program that is /bin/sh in containers that run as processes, such as busybox; default: this "
            "machine's shell",
            value="PROGRAM",
        ),
    ] = ""
    image_service_endpoint: Annotated[
        str, about("socket of the CRI image service, if it is not the runtime's", value="ENDPOINT")
    ] = ""
    serialize_image_pulls: Annotated[bool, about("pull one image at a time")] = True
    max_parallel_image_pulls: Annotated[
        int, about("images that are pulled at a time without --serialize-image-pulls; 0: no limit")
    ] = 0
    image_gc_high_threshold: Annotated[
        int, about("percent of disk use above which unused images are removed; 100: never")
    ] = 85
    image_gc_low_threshold: Annotated[int, about("percent of disk use down to which images are removed")] = 80
    minimum_image_ttl_duration: Annotated[
        Duration, about("age before which an unused image is not removed")
    ] = 120.0
    container_log_max_size: Annotated[
        str, about("size of one file of a container's log before it is rotated")
    ] = "10Mi"
    container_log_max_files: Annotated[
        int, about("files of a container's log, the newest included; at least 2")
    ] = 5
    eviction_hard: Annotated[str, about("thresholds of the node's disk below which pods are evicted")] = (
        thresholds.DEFAULT
    )
    eviction_monitoring_period: Annotated[Duration, about("interval at which the disk is measured")] = 10.0
    eviction_pressure_transition_period: Annotated[
        Duration, about("time with enough space before the node leaves DiskPressure")
    ] = 30.0
    shutdown_grace_period: Annotated[Duration, about("time all pods together get when the node stops")] = 30.0
    pod_network: Annotated[str, about("bridge gives each pod its own network; host shares the machine's")] = (
        BRIDGE
    )
    pod_cidr: Annotated[
        str, about("address range of this node's pods; default: a free one", value="CIDR")
    ] = ""
    cluster_cidr: Annotated[str, about("address range of all nodes that share the bridge", value="CIDR")] = ""
    pod_bridge: Annotated[
        str, about("bridge shared with other nodes; default: one of the node's own", value="INTERFACE")
    ] = ""

    def __post_init__(self) -> None:
        if self.pod_network not in (BRIDGE, HOST):
            raise ValueError(f"--pod-network must be {BRIDGE} or {HOST}, not {self.pod_network!r}")
        try:
            sysctls.allow(self.allowed_unsafe_sysctls)
        except ValueError as error:
            raise ValueError(f"--allowed-unsafe-sysctls: {error}") from error
        check_log_options(self.container_log_max_size, self.container_log_max_files)
        check_endpoint("--container-runtime-endpoint", self.container_runtime_endpoint)
        check_endpoint("--image-service-endpoint", self.image_service_endpoint)
        if self.container_shell and not self.shell_path:
            raise ValueError(f"--container-shell: there is no program {self.container_shell}")
        self._check_image_options()
        self._check_cluster_addresses()
        if self.authorization_mode not in AUTHORIZATION_MODES:
            known = " or ".join(AUTHORIZATION_MODES)
            raise ValueError(f"--authorization-mode must be {known}, not {self.authorization_mode!r}")
        thresholds.parse(self.eviction_hard)
        if self.instance_metadata_port and not (self.instance_id and self.zone):
            raise ValueError("--instance-metadata-port needs --instance-id and --zone")
        if self.eviction_monitoring_period <= 0:
            given = self.eviction_monitoring_period
            raise ValueError(f"--eviction-monitoring-period must be more than 0, not {given:g}")

    def _check_cluster_addresses(self) -> None:
        try:
            IPv4Network(self.service_cluster_ip_range)
        except ValueError as error:
            raise ValueError(
                f"--service-cluster-ip-range must be a range of IPv4 addresses: {error}"
            ) from error
        for server in self.cluster_dns:
            try:
                ip_address(server)
            except ValueError as error:
                raise ValueError(f"--cluster-dns must be IP addresses: {error}") from error
        if not names.is_subdomain(self.cluster_domain):
            raise ValueError(f"--cluster-domain must be a domain name, not {self.cluster_domain!r}")

    def _check_image_options(self) -> None:
        high, low = self.image_gc_high_threshold, self.image_gc_low_threshold
        if not 0 <= high <= 100:
            raise ValueError(f"--image-gc-high-threshold must be between 0 and 100, not {high}")
        if not 0 <= low <= high:
            raise ValueError(
                f"--image-gc-low-threshold must be between 0 and --image-gc-high-threshold, not {low}"
            )
        if self.max_parallel_image_pulls < 0:
            given = self.max_parallel_image_pulls
            raise ValueError(f"--max-parallel-image-pulls must not be negative, not {given}")

    @property
    def shell_path(self) -> str:
        """The file of --container-shell; "" if there is none."""
        found = shutil.which(self.container_shell) if self.container_shell else None
        return os.path.abspath(found) if found else ""

    @property
    def log_max_size(self) -> int:
        """In bytes."""
        return quantity.value(self.container_log_max_size)


def check_log_options(max_size: str, max_files: int) -> None:
    """Raises ValueError."""
    try:
        size = quantity.value(max_size)
    except quantity.InvalidQuantity as error:
        raise ValueError(f"--container-log-max-size must be a quantity such as 10Mi: {error}") from None
    if size < MIN_LOG_SIZE:
        raise ValueError(f"--container-log-max-size must be at least {MIN_LOG_SIZE >> 10}Ki, not {max_size}")
    if max_files < 2:
        raise ValueError(f"--container-log-max-files must be at least 2, not {max_files}")


def check_endpoint(flag: str, endpoint: str) -> None:
    """Raises ValueError."""
    if endpoint and not endpoint.startswith("unix:///"):
        raise ValueError(
            f"{flag} must be a socket such as unix:///run/containerd/containerd.sock, not {endpoint}"
        )


def pki_directory(settings: NodeOptions) -> str:
    return settings.cert_dir or f"{settings.root_dir}/pki"
