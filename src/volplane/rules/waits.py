"""Why a plan waits: a reason from one list, the objects it is about, and the sentence that people read.

Code compares reasons and data. Sentences are for people: they are rendered here and nowhere else, and no code
looks into them (`tests/architecture/test_waits.py`).
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct, structs

UNTIL_CHANGED = float("inf")  # no timer: a change of an object wakes the key


class WaitReason(StrEnum):
    """Values are on the sockets of wait reports: add, never change."""

    # Any controller
    RETRY = "Retry"  # the last attempt failed

    # Persistent volume binder
    BINDING_MODE_NOT_SET = "BindingModeNotSet"
    FIRST_CONSUMER = "FirstConsumer"
    POD_NOT_SCHEDULED = "PodNotScheduled"
    PROVISIONING_DISABLED = "ProvisioningDisabled"
    STORAGE_CLASS_NOT_FOUND = "StorageClassNotFound"
    NO_VOLUME_PLUGIN = "NoVolumePlugin"
    NO_MATCHING_VOLUME = "NoMatchingVolume"
    EXTERNAL_PROVISIONER = "ExternalProvisioner"
    VOLUME_NOT_FOUND = "VolumeNotFound"
    VOLUME_MISMATCH = "VolumeMismatch"
    VOLUME_BOUND_TO_OTHER_CLAIM = "VolumeBoundToOtherClaim"
    CLAIM_LOST = "ClaimLost"
    VOLUME_RETAINED = "VolumeRetained"
    DISK_DELETION = "DiskDeletion"
    RECLAIM_FAILED = "ReclaimFailed"
    RECYCLED_VOLUME_IN_USE = "RecycledVolumeInUse"
    RECYCLING = "Recycling"

    # Attach/detach controller
    DETACHING_FROM_OTHER_NODE = "DetachingFromOtherNode"
    ATTACHING_TO_OTHER_NODE = "AttachingToOtherNode"
    ATTACHED_TO_OTHER_NODE = "AttachedToOtherNode"
    ATTACHER_BUSY = "AttacherBusy"
    ATTACH = "Attach"
    DETACH = "Detach"
    ATTACH_FAILED = "AttachFailed"
    MOUNTED_ON_NODE = "MountedOnNode"
    NODE_NOT_READY = "NodeNotReady"
    FORCE_DETACH = "ForceDetach"
    FLEX_ATTACH = "FlexAttach"
    FLEX_DETACH = "FlexDetach"
    FLEX_DRIVER_MISSING = "FlexDriverMissing"

    # FlexVolume controller
    FLEX_VERIFICATION = "FlexVerification"

    # Protection of objects that are in use
    CLAIM_IN_USE = "ClaimInUse"
    VOLUME_BOUND = "VolumeBound"
    ATTRIBUTES_CLASS_IN_USE = "AttributesClassInUse"

    # Snapshot controller
    GROUP_MEMBER_WITHOUT_CONTENT = "GroupMemberWithoutContent"
    SNAPSHOT_RESTORING = "SnapshotRestoring"
    DELETED_WITH_GROUP = "DeletedWithGroup"
    CONTENT_DELETION = "ContentDeletion"
    SNAPSHOT_INVALID = "SnapshotInvalid"

    # Scheduler
    SCHEDULING_GATES = "SchedulingGates"
    SCHEDULING_BACKOFF = "SchedulingBackoff"
    UNSCHEDULABLE = "Unschedulable"
    VOLUME_BINDING = "VolumeBinding"
    BINDING_ABORTED = "BindingAborted"

    # Workloads
    ACTIVE_DEADLINE = "ActiveDeadline"
    TTL_AFTER_FINISHED = "TTLAfterFinished"
    POD_FAILURE_BACKOFF = "PodFailureBackoff"
    NEXT_RUN = "NextRun"
    MIN_READY_SECONDS = "MinReadySeconds"
    POD_TERMINATING = "PodTerminating"
    POD_NOT_READY = "PodNotReady"
    POD_NOT_AVAILABLE = "PodNotAvailable"
    POD_UPDATING = "PodUpdating"
    CLAIM_OF_EARLIER_POD = "ClaimOfEarlierPod"
    CLAIM_BEING_DELETED = "ClaimBeingDeleted"
    EVICTED_POD_NOT_DELETED = "EvictedPodNotDeleted"
    TERMINATING_POD_COUNTS = "TerminatingPodCounts"

    # Nodes, namespaces, certificates
    HEARTBEAT = "Heartbeat"
    ZONE_DISRUPTED = "ZoneDisrupted"
    EVICTION_RATE = "EvictionRate"
    TOLERATION = "Toleration"
    NODE_QUARANTINE = "NodeQuarantine"
    NAMESPACE_CONTENT = "NamespaceContent"
    REQUEST_EXPIRY = "RequestExpiry"
    INSTANCE_NOT_STOPPED = "InstanceNotStopped"
    INSTANCE_UNKNOWN = "InstanceUnknown"

    # CSI sidecars
    ATTACHMENT_INVALID = "AttachmentInvalid"
    DRIVER_NOT_REGISTERED = "DriverNotRegistered"
    VOLUME_STILL_ATTACHED = "VolumeStillAttached"
    PROVISIONING_IMPOSSIBLE = "ProvisioningImpossible"
    PROVISIONING_INFEASIBLE = "ProvisioningInfeasible"
    SELECTED_NODE = "SelectedNode"
    OTHER_NODE_FIRST = "OtherNodeFirst"
    BINDING_BEFORE_CLEANUP = "BindingBeforeCleanup"
    SOURCE_IN_USE = "SourceInUse"
    CAPACITY_POLL = "CapacityPoll"
    RESIZE_INFEASIBLE = "ResizeInfeasible"
    RESIZE_IN_USE = "ResizeInUse"
    NODE_RESIZE = "NodeResize"
    MODIFY_INFEASIBLE = "ModifyInfeasible"
    ATTRIBUTES_CLASS_NOT_FOUND = "AttributesClassNotFound"
    SNAPSHOT_IMPOSSIBLE = "SnapshotImpossible"
    SNAPSHOT_DELETION_REQUEST = "SnapshotDeletionRequest"
    GROUP_SNAPSHOT = "GroupSnapshot"

    # Kubelet
    PODS_NOT_KNOWN = "PodsNotKnown"
    CONTAINERS_RUNNING = "ContainersRunning"
    SELINUX_RELABEL = "SELinuxRelabel"
    NOT_ATTACHED = "NotAttached"
    VOLUMES_IN_USE = "VolumesInUse"
    CONTAINER_RESTART = "ContainerRestart"
    STOPPING_CONTAINERS = "StoppingContainers"
    MOUNTING_VOLUMES = "MountingVolumes"
    UNMOUNTING_VOLUMES = "UnmountingVolumes"


class WaitData(Struct, frozen=True, omit_defaults=True):
    """The objects that a wait is about; the reason decides which of the fields are set."""

    node: str = ""
    nodes: tuple[str, ...] = ()  # other nodes
    pods: tuple[str, ...] = ()
    claim: str = ""
    claims: tuple[str, ...] = ()
    volume: str = ""
    driver: str = ""
    class_name: str = ""
    names: tuple[str, ...] = ()  # of objects of any other kind


WaitIdentity = tuple[WaitReason, WaitData]


class Wait(Struct, frozen=True):
    """A step: nothing to do for that long, or until a change wakes the key.

    Two waits with the same reason and data are the same wait; the message may differ from attempt to attempt.
    """

    reason: WaitReason
    data: WaitData = WaitData()
    seconds: float = UNTIL_CHANGED
    message: str = ""  # text from elsewhere: a driver's error, a list of refusals
    backoff: bool = False  # the last step of its plan: retry after the controller's next backoff

    @property
    def identity(self) -> WaitIdentity:
        return self.reason, self.data

    @property
    def text(self) -> str:
        return render(self.reason, self.data, self.message)


def render(reason: WaitReason, data: WaitData, message: str = "") -> str:
    """The sentence for people. A message that the sentence does not contain is appended."""
    values = {name: _join(value) for name, value in structs.asdict(data).items()}
    template = SENTENCES[reason]
    sentence = template.format(**values, message=message)
    return f"{sentence}: {message}" if message and "{message}" not in template else sentence


def _join(value: str | tuple[str, ...]) -> str:
    return value if isinstance(value, str) else ", ".join(value)


_FREE = "cannot attach the volume to {node}: "

SENTENCES: dict[WaitReason, str] = {
    WaitReason.RETRY: "{message}",
    WaitReason.BINDING_MODE_NOT_SET: 'VolumeBindingMode not set for StorageClass "{class_name}"',
    WaitReason.FIRST_CONSUMER: "waiting for the first pod that uses the claim",
    WaitReason.POD_NOT_SCHEDULED: "waiting for pod {pods} to be scheduled",
    WaitReason.PROVISIONING_DISABLED: "dynamic provisioning is disabled and no PersistentVolume fits",
    WaitReason.STORAGE_CLASS_NOT_FOUND: 'storageclass.storage.k8s.io "{class_name}" not found',
    WaitReason.NO_VOLUME_PLUGIN: "no volume plugin matched name: {driver}",
    WaitReason.NO_MATCHING_VOLUME: (
        "no persistent volumes available for this claim and no storage class is set"
    ),
    WaitReason.EXTERNAL_PROVISIONER: "waiting for the external provisioner {driver} to create the volume",
    WaitReason.VOLUME_NOT_FOUND: 'volume "{volume}" does not exist',
    WaitReason.VOLUME_MISMATCH: "{message}",
    WaitReason.VOLUME_BOUND_TO_OTHER_CLAIM: 'volume "{volume}" is bound to a different claim',
    WaitReason.CLAIM_LOST: "{message}",
    WaitReason.VOLUME_RETAINED: "released; its reclaim policy is Retain",
    WaitReason.DISK_DELETION: "waiting for {driver} to delete the disk",
    WaitReason.RECLAIM_FAILED: "{message}",
    WaitReason.RECYCLED_VOLUME_IN_USE: "Volume is used by pods: {pods}",
    WaitReason.RECYCLING: "pod {pods} is deleting the files of the volume",
    WaitReason.DETACHING_FROM_OTHER_NODE: _FREE + "it is being detached from {nodes} first",
    WaitReason.ATTACHING_TO_OTHER_NODE: _FREE + "it is being attached to {nodes} first",
    WaitReason.ATTACHED_TO_OTHER_NODE: _FREE + "it is attached to {nodes}",
    WaitReason.ATTACHER_BUSY: _FREE + "the external-attacher has not finished on {nodes}",
    WaitReason.ATTACH: "waiting for the external-attacher of {driver} to attach the volume to {node}",
    WaitReason.DETACH: "waiting for the external-attacher of {driver} to detach the volume from {node}",
    WaitReason.ATTACH_FAILED: "{message}",
    WaitReason.MOUNTED_ON_NODE: "{node} still has the volume mounted",
    WaitReason.NODE_NOT_READY: "{node} is not ready and may still have the volume mounted",
    WaitReason.FORCE_DETACH: (
        "{node} is not ready and may still have the volume mounted; forced detach after the grace period"
    ),
    WaitReason.FLEX_ATTACH: "waiting for FlexVolume driver {driver} to attach the volume to {node}",
    WaitReason.FLEX_DETACH: "waiting for FlexVolume driver {driver} to detach the volume from {node}",
    WaitReason.FLEX_DRIVER_MISSING: "{message}",
    WaitReason.FLEX_VERIFICATION: "attached; the driver is asked again after the sync period",
    WaitReason.CLAIM_IN_USE: "still used by pod {pods}",
    WaitReason.VOLUME_BOUND: "still bound to claim {claim}",
    WaitReason.ATTRIBUTES_CLASS_IN_USE: "still used by {names}",
    WaitReason.GROUP_MEMBER_WITHOUT_CONTENT: "the group snapshot has not created a content for {names} yet",
    WaitReason.SNAPSHOT_RESTORING: "snapshot {names} is being restored into {claims}",
    WaitReason.DELETED_WITH_GROUP: "{message}",
    WaitReason.CONTENT_DELETION: "waiting for VolumeSnapshotContent {names} to be deleted",
    WaitReason.SNAPSHOT_INVALID: "{message}",
    WaitReason.SCHEDULING_GATES: "scheduling gates: {names}",
    WaitReason.SCHEDULING_BACKOFF: "no node fitted; the next attempt waits for the backoff",
    WaitReason.UNSCHEDULABLE: "{message}",
    WaitReason.VOLUME_BINDING: (
        "waiting for the volume of claim {claim} to be bound before the pod is bound to {node}"
    ),
    WaitReason.BINDING_ABORTED: "{message}",
    WaitReason.ACTIVE_DEADLINE: "running; the job fails when its activeDeadlineSeconds are over",
    WaitReason.TTL_AFTER_FINISHED: "finished; the job is deleted after ttlSecondsAfterFinished",
    WaitReason.POD_FAILURE_BACKOFF: "a pod failed; the next one starts after the backoff",
    WaitReason.NEXT_RUN: "next run at {names}",
    WaitReason.MIN_READY_SECONDS: "pods must be ready for minReadySeconds",
    WaitReason.POD_TERMINATING: "pod {pods} is terminating",
    WaitReason.POD_NOT_READY: "pod {pods} is not running and ready",
    WaitReason.POD_NOT_AVAILABLE: "pod {pods} is not available yet",
    WaitReason.POD_UPDATING: "pod {pods} is being updated",
    WaitReason.CLAIM_OF_EARLIER_POD: "claim {claim} is being deleted with an earlier pod {pods}",
    WaitReason.CLAIM_BEING_DELETED: "pvc {claim} is being deleted",
    WaitReason.EVICTED_POD_NOT_DELETED: "an evicted pod is not being deleted yet",
    WaitReason.TERMINATING_POD_COUNTS: "a terminating pod counts until its grace period is over",
    WaitReason.HEARTBEAT: "waiting for the next heartbeat of {node}",
    WaitReason.ZONE_DISRUPTED: ("no pods are evicted from {node}: too many nodes of its zone are not ready"),
    WaitReason.EVICTION_RATE: "no pods are evicted from {node} yet: the eviction rate of its zone is used up",
    WaitReason.TOLERATION: "the pod tolerates taint {names} for a limited time",
    WaitReason.NODE_QUARANTINE: "node {node} does not exist; pods on it are deleted if it does not appear",
    WaitReason.NAMESPACE_CONTENT: "objects are left in the namespace",
    WaitReason.REQUEST_EXPIRY: "the request is kept until it expires",
    WaitReason.INSTANCE_NOT_STOPPED: "{node} is not ready, but instance {names} is not known to be stopped",
    WaitReason.INSTANCE_UNKNOWN: "{node} is not ready, and its instance is not known",
    WaitReason.ATTACHMENT_INVALID: "{message}",
    WaitReason.DRIVER_NOT_REGISTERED: "{message}",
    WaitReason.VOLUME_STILL_ATTACHED: "volume {volume} is still attached to {nodes}",
    WaitReason.PROVISIONING_IMPOSSIBLE: "{message}",
    WaitReason.PROVISIONING_INFEASIBLE: (
        "{driver} cannot create a volume of class {class_name}; the next attempt is delayed"
    ),
    WaitReason.SELECTED_NODE: "waiting for the scheduler to select a node",
    WaitReason.OTHER_NODE_FIRST: "the provisioner of another node may create the volume first",
    WaitReason.BINDING_BEFORE_CLEANUP: "the volume exists; the claim's finalizer is removed after binding",
    WaitReason.SOURCE_IN_USE: "{claims} is still copying from it",
    WaitReason.CAPACITY_POLL: "waiting for the next capacity poll",
    WaitReason.RESIZE_INFEASIBLE: "{driver} cannot expand the volume; the next attempt is delayed",
    WaitReason.RESIZE_IN_USE: "{driver} expands volumes only while no pod uses them",
    WaitReason.NODE_RESIZE: "waiting for the kubelet to expand the file system",
    WaitReason.MODIFY_INFEASIBLE: "{driver} cannot modify the volume; the next attempt is delayed",
    WaitReason.ATTRIBUTES_CLASS_NOT_FOUND: 'VAC "{class_name}" does not exist.',
    WaitReason.SNAPSHOT_IMPOSSIBLE: "{message}",
    WaitReason.SNAPSHOT_DELETION_REQUEST: "waiting for the snapshot controller to request the deletion",
    WaitReason.GROUP_SNAPSHOT: "waiting for the group snapshot to be taken",
    WaitReason.PODS_NOT_KNOWN: "nothing is unmounted until all pods of this node are known",
    WaitReason.CONTAINERS_RUNNING: "a pod that has the volume mounted is still running",
    WaitReason.SELINUX_RELABEL: (
        'waiting for unmount of volume "{volume}", because it is already mounted to a different pod with a '
        "different SELinux label"
    ),
    WaitReason.NOT_ATTACHED: "not attached yet: node.status.volumesAttached does not list it",
    WaitReason.VOLUMES_IN_USE: "writing volumesInUse to the node's status",
    WaitReason.CONTAINER_RESTART: "{message}",
    WaitReason.STOPPING_CONTAINERS: "stopping the pod's containers",
    WaitReason.MOUNTING_VOLUMES: "mounting the pod's volumes",
    WaitReason.UNMOUNTING_VOLUMES: "unmounting the pod's volumes",
}
