"""The provisioner's flags, with upstream's names and defaults; requests to the API server are not limited.

`--infeasible-retry-interval` is our own: upstream always waits five minutes.
"""

from typing import Annotated

from volplane.base.settings import Duration, about
from volplane.sidecars.base import SidecarOptions


class ProvisionerOptions(SidecarOptions, frozen=True, kw_only=True):
    timeout: Annotated[Duration, about("timeout of one CSI call")] = 10.0
    infeasible_retry_interval: Annotated[
        Duration, about("delay before CreateVolume is retried after the driver rejected its arguments")
    ] = 300.0
    worker_threads: Annotated[int, about("claims and volumes that are processed at the same time")] = 100
    volume_name_prefix: Annotated[str, about("prefix of volume names sent to the driver")] = "pvc"
    volume_name_uuid_length: Annotated[
        int, about("characters of the claim's uid in the name; -1 uses all")
    ] = -1
    strict_topology: Annotated[bool, about("pass only the topology of the selected node to the driver")] = (
        False
    )
    immediate_topology: Annotated[
        bool, about("pass the cluster's topologies for classes with Immediate binding")
    ] = True
    extra_create_metadata: Annotated[bool, about("send the names of claim and volume with CreateVolume")] = (
        False
    )
    default_fstype: Annotated[str, about("file system of volumes whose class names none", value="FSTYPE")] = (
        ""
    )
    controller_publish_readonly: Annotated[
        bool, about("set readOnly in the volume's source for claims that are ReadOnlyMany only")
    ] = False
    prevent_volume_mode_conversion: Annotated[
        bool, about("refuse to restore a snapshot into another volume mode")
    ] = True
    cloning_protection_threads: Annotated[
        int, about("clone sources whose protection is processed at the same time")
    ] = 1
    snapshot_orphan_sweep_interval: Annotated[
        Duration, about("interval for removing the protection of snapshots that nothing restores any more")
    ] = 300.0
    enable_capacity: Annotated[bool, about("publish CSIStorageCapacity objects")] = False
    capacity_threads: Annotated[int, about("capacities that are queried at the same time")] = 1
    capacity_poll_interval: Annotated[Duration, about("interval between GetCapacity calls")] = 60.0
    capacity_for_immediate_binding: Annotated[
        bool, about("publish capacities for classes with Immediate binding, too")
    ] = False
    capacity_ownerref_level: Annotated[
        int, about("owner of the capacities: 0 pod, 1 its controller, 2 that one's; -1 none")
    ] = 1
    kube_api_capacity_qps: Annotated[float, about("accepted and ignored: requests are not limited")] = 0.0
    kube_api_capacity_burst: Annotated[int, about("accepted and ignored: requests are not limited")] = 0
    node_deployment: Annotated[bool, about("provision only for this node; needs NODE_NAME")] = False
    node_deployment_immediate_binding: Annotated[
        bool, about("with --node-deployment: provision for classes with Immediate binding, too")
    ] = True
    node_deployment_base_delay: Annotated[
        Duration, about("with --node-deployment: first delay before claiming an Immediate claim")
    ] = 20.0
    node_deployment_max_delay: Annotated[
        Duration, about("with --node-deployment: longest delay before claiming an Immediate claim")
    ] = 60.0
    enable_pprof: Annotated[bool, about("accepted and ignored: profiling of Go programs")] = False
    automaxprocs: Annotated[bool, about("accepted and ignored: tuning of Go programs")] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.worker_threads < 1:
            raise ValueError("option -worker-threads must be greater than zero")
        if self.node_deployment and self.leader_election:
            raise ValueError("--node-deployment and --leader-election exclude each other")
        if not self.volume_name_prefix:
            raise ValueError("volume name prefix cannot be empty")
