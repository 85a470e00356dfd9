"""What a node can be told: flags as the kubelet names them, and those that only make sense here."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

CLIENT_PAIR = "kubelet-client-current.pem"  # certificate and key in one file, as a kubelet keeps them
BRIDGE, HOST = "bridge", "host"


class NodeSettings(Struct, frozen=True, kw_only=True):
    hostname_override: str = ""  # the node's name; the machine's own if empty
    root_dir: str = "/var/lib/kubelet"
    own_paths: bool = True  # root_dir stands for /var/lib/kubelet, so that several nodes share a machine
    node_ip: str = "127.0.0.1"
    address: str = "127.0.0.1"  # where the kubelet's API listens
    port: int = 0
    cert_dir: str = ""  # where certificates of this node's own are kept; <root-dir>/pki if empty
    rotate_certificates: bool = True  # a node that has joined by a token renews the certificate it was given
    rotate_server_certificates: bool = False  # without --tls-cert-file: ask the cluster for a certificate
    tls_cert_file: str = ""
    tls_private_key_file: str = ""
    client_ca_file: str = ""
    # Whose certificate may use the kubelet's API.
    api_server_names: tuple[str, ...] = ("kube-apiserver-kubelet-client", "kube-apiserver")
    node_labels: Mapping[str, str] = {}
    zone: str = ""
    region: str = ""
    instance_id: str = ""
    instance_type: str = ""
    provider_id: str = ""
    max_pods: int = 110
    max_container_restart_period: float = 300.0  # the longest wait before a container is started again
    capacity: Mapping[str, str] = {}  # what differs from the machine's own
    enable_controller_attach_detach: bool = True
    node_status_update_frequency: float = 10.0  # the Lease's heartbeat
    node_lease_duration: float = 40.0
    sync_frequency: float = 60.0  # how often volumes that want it are published again
    claim_read_frequency: float = 60.0  # how often claims of mounted volumes are read: they may have grown
    volume_stats_agg_period: float = 60.0  # how often drivers are asked how full volumes are; 0: never
    feature_gates: Mapping[str, bool] = {}
    csi_timeout: float = 120.0  # for each step of a CSI volume; then it counts as uncertain
    volume_retry_interval_max: float = 122.0  # pauses after failures double from 500 ms up to this
    pod_mount_timeout: float = 123.0  # when it is asked whether a pod's volumes can come here at all
    token_max_age: float = 86_400.0  # a token is renewed at this age, or after four fifths of its life
    ownership_notice: float = 30.0  # when a pod hears that fsGroup takes long; then after twice as long
    cluster_host: str = ""  # KUBERNETES_SERVICE_HOST of the containers
    cluster_port: int = 0
    shutdown_grace_period: float = 30.0  # for all pods together when the node stops
    pod_network: str = BRIDGE  # a network of its own for every pod; host: all share this machine's
    pod_cidr: str = ""  # this node's addresses for pods; a range that is free on this machine if empty
    cluster_cidr: str = ""  # those of all nodes that share the bridge
    pod_bridge: str = ""  # an interface that is shared with other nodes; the node's own if empty

    def __post_init__(self) -> None:
        if self.pod_network not in (BRIDGE, HOST):
            raise ValueError(f"--pod-network must be {BRIDGE} or {HOST}, not {self.pod_network!r}")


def pki_of(settings: NodeSettings) -> str:
    return settings.cert_dir or f"{settings.root_dir}/pki"
