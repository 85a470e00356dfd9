"""What `kubectl explain` says: a sentence for each of the storage kinds and their fields, in our own words.

A block per type: its name with its group's, what it is, and its fields indented. What stands under `*` goes
for the field of that name in every kind. Fields nobody has described yet have no description.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

_TEXTS = """
*
  apiVersion: The group and version of the schema that this object is written in.
  kind: The type of this object, in CamelCase. It cannot change.
  metadata: Who the object is: name, namespace, labels, annotations, owners.

meta.ObjectMeta: What all objects have in common: identity, labels, history and deletion.
  annotations: Notes of tools and people, by key. Not selected by, and of any content.
  creationTimestamp: When the server created the object. Set by the server.
  deletionGracePeriodSeconds: Seconds that were given to the object to end by itself. Set by the server.
  deletionTimestamp: When the object goes or was meant to go; set by the server on DELETE, never cleared.
  finalizers: Those who have work to do before the object may go; each removes its own entry when done.
  generateName: A beginning that the server completes to a unique name if no name is given.
  generation: Counts changes of what is wanted. Set by the server.
  labels: Keys and values that objects are selected by.
  managedFields: Which writer owns which fields, kept by the server for server-side apply.
  name: Unique among objects of this kind in the namespace. It cannot change.
  namespace: The space in which the name is unique. It cannot change.
  ownerReferences: Objects this one belongs to; when all of them are gone, it is deleted.
  resourceVersion: The revision of the last write. Send it back to write only over what you have read.
  selfLink: No longer filled in.
  uid: Tells this object from earlier and later ones of the same name. Set by the server.

core.PersistentVolumeClaim: A request for storage by a namespace's user; it is bound to one volume.
  spec: What storage is wanted. After creation only the size and the attributes class of a bound claim change.
  status: What the claim has got so far. Written by controllers.

core.PersistentVolumeClaimSpec: What a claim asks for.
  accessModes: How the volume may be mounted: ReadWriteOnce, ReadOnlyMany, ReadWriteMany, ReadWriteOncePod.
  dataSource: A snapshot or claim to fill the new volume from, in the same namespace.
  dataSourceRef: As dataSource, but for any kind of object, also in other namespaces where that is granted.
  resources: The size that is wanted at least. A bound claim may ask for more later, if its class allows it.
  selector: Labels that a volume must have to be considered. A claim with a selector is not provisioned for.
  storageClassName: The class to provision from. Absent: the default class. Empty: only volumes without class.
  volumeAttributesClassName: The class of changeable properties such as throughput that the volume shall have.
  volumeMode: Filesystem (the default) for a mounted directory, Block for a raw device.
  volumeName: The volume that the claim is bound to, or shall be bound to.

core.PersistentVolumeClaimStatus: How far a claim has come.
  accessModes: How the bound volume can be mounted.
  allocatedResourceStatuses: How far a resize has come, by resource.
  allocatedResources: The size that the storage has set aside, which may be more than what is usable yet.
  capacity: The usable size of the bound volume.
  conditions: What is going on with the volume: being resized, being modified, waiting for its node.
  currentVolumeAttributesClassName: The attributes class that the volume has now.
  modifyVolumeStatus: How far the change to another attributes class has come.
  phase: Pending until a volume is bound, then Bound; Lost if that volume is gone.

core.VolumeResourceRequirements: Amounts of storage.
  limits: The most that is wanted.
  requests: The least that is needed; `storage` is the size.

core.PersistentVolume: A piece of storage of the cluster, made by a provisioner or an administrator.
  spec: Where the storage is and how it may be used.
  status: What has become of the volume. Written by controllers.

core.PersistentVolumeSpec: Where the storage is and how it may be used.
  accessModes: All ways in which the volume can be mounted.
  capacity: Its size.
  claimRef: The claim it belongs to, or is set aside for. A bound pair points at each other.
  csi: The volume of a CSI driver.
  hostPath: A directory of the node, for trying things out on a single one.
  local: A disk or directory of one node.
  mountOptions: Options given to mount. Wrong ones make the mount fail.
  nfs: An exported directory of an NFS server.
  nodeAffinity: The nodes from which the volume can be reached.
  persistentVolumeReclaimPolicy: When its claim goes: Retain keeps the volume, Delete removes its storage too.
  storageClassName: The class it was made from, and whose claims it may be bound to.
  volumeAttributesClassName: The class of changeable properties that it has.
  volumeMode: Filesystem or Block.

core.PersistentVolumeStatus: What has become of a volume.
  lastPhaseTransitionTime: When the phase last changed.
  message: Why the volume is in this phase, for people.
  phase: Pending, Available, Bound, Released (its claim is gone) or Failed.
  reason: Why it failed, in a word.

core.CSIPersistentVolumeSource: A volume as its CSI driver knows it.
  controllerExpandSecretRef: The secret sent to the driver when the volume grows.
  controllerPublishSecretRef: The secret sent to the driver when the volume is attached or detached.
  driver: The name of the driver.
  fsType: The file system to make on a blank volume and to mount.
  nodeExpandSecretRef: The secret sent to the driver when the file system grows on the node.
  nodePublishSecretRef: The secret sent to the driver when the volume is mounted into a pod.
  nodeStageSecretRef: The secret sent to the driver when the volume is first mounted on the node.
  readOnly: Attach and mount without the right to write.
  volumeAttributes: What the driver said about the volume when it made it, handed back to it on every call.
  volumeHandle: What the driver calls the volume. It cannot change.

core.VolumeNodeAffinity: The nodes from which a volume can be reached.
  required: Terms of which one must fit the node.

storage.StorageClass: A kind of storage on offer, and how volumes of it are made.
  allowVolumeExpansion: May claims of this class ask for more than they first got?
  allowedTopologies: Where volumes may be made, if not everywhere the driver can.
  mountOptions: Options with which volumes of this class are mounted.
  parameters: What the provisioner is told about the volumes to make. They cannot change.
  provisioner: Who makes the volumes: the name of a CSI driver, as a rule. It cannot change.
  reclaimPolicy: What becomes of a volume when its claim goes: Delete (the default) or Retain.
  volumeBindingMode: Immediate makes volumes at once, WaitForFirstConsumer when a pod has been placed.

storage.VolumeAttachment: The wish that a volume be attached to a node, and what has become of it.
  spec: The volume and the node. It cannot change.
  status: Whether the volume is attached. Written by the attacher.

storage.VolumeAttachmentSpec: A volume, a node, and who attaches the one to the other.
  attacher: The name of the CSI driver that is to do it.
  nodeName: The node to attach to.
  source: The volume to attach.

storage.VolumeAttachmentSource: The volume to attach.
  inlineVolumeSpec: A volume that has no object of its own.
  persistentVolumeName: The name of the volume.

storage.VolumeAttachmentStatus: Whether a volume is attached.
  attachError: The last failure to attach.
  attached: The volume is attached; nodes mount it only then.
  attachmentMetadata: What the driver said on attaching, which the node needs for mounting.
  detachError: The last failure to detach.

storage.VolumeError: A failure.
  errorCode: The code of the gRPC error, if the driver returned one.
  message: What went wrong.
  time: When.

storage.CSIDriver: How the cluster deals with one CSI driver; its name is the driver's.
  spec: What the driver needs and what it can do.

storage.CSIDriverSpec: What a driver needs and what it can do.
  attachRequired: Do its volumes need a VolumeAttachment before they are mounted? It cannot change.
  fsGroupPolicy: When the group of a pod is given its files: ReadWriteOnceWithFSType, File, None.
  nodeAllocatableUpdatePeriodSeconds: How often a node asks the driver how many volumes it can take.
  podInfoOnMount: Tell the driver which pod a volume is mounted for.
  requiresRepublish: Call the driver again and again while the volume is mounted.
  seLinuxMount: Volumes can be mounted with an SELinux label as an option.
  serviceAccountTokenInSecrets: Hand tokens over among the secrets of a call instead of its context.
  storageCapacity: Place pods by the capacity that the driver publishes.
  tokenRequests: Tokens of the pod's account that the driver is given, by audience.
  volumeLifecycleModes: Persistent, Ephemeral (inline in pods), or both.

storage.CSINode: The CSI drivers that run on one node; its name is the node's.
  spec: The drivers.

storage.CSINodeSpec: The drivers of a node.
  drivers: One entry for each driver that has registered with the kubelet.

storage.CSINodeDriver: A driver on a node.
  allocatable: How many volumes of the driver the node can hold.
  name: The name of the driver.
  nodeID: What the driver calls the node.
  topologyKeys: The labels of the node by which the driver tells places apart.

storage.VolumeNodeResources: What a node has room for.
  count: How many volumes may be attached at a time. Absent: no limit.

storage.CSIStorageCapacity: How much more can be provisioned of one class in one part of the cluster.
  capacity: What is left there, as the driver tells it.
  maximumVolumeSize: The largest volume that can still be made there.
  nodeTopology: The nodes that this is about. Empty: all. Absent: none.
  storageClassName: The class that this is about.

storage.VolumeAttributesClass: A set of properties of volumes that can be changed while they are in use.
  driverName: The CSI driver that knows these properties. It cannot change.
  parameters: The properties, as the driver calls them. They cannot change.

storage.TokenRequest: A token that a driver is given.
  audience: Whom the token is for.
  expirationSeconds: How long it is valid.
"""


@cache
def _table() -> Mapping[str, str]:
    """`storage.StorageClass` and `storage.StorageClass.provisioner` to their sentences."""
    found, of = {}, ""
    for line in _TEXTS.strip().splitlines():
        name, _, text = line.strip().partition(": ")
        if line.startswith("  "):
            found[f"{of}.{name}"] = text
        elif line:
            of = name
            found[of] = text
    return found


def of_type(row: str) -> str:
    return _table().get(row, "")


def of_field(row: str, name: str) -> str:
    table = _table()
    return table.get(f"{row}.{name}") or table.get(f"*.{name}", "")
