"""The kinds of storage.k8s.io/v1."""

from __future__ import annotations

from volplane.api import storage
from volplane.api.kinds.shared import STATUS, builtin_kind

KINDS = (
    builtin_kind(
        storage.StorageClass,
        "storageclasses.storage.k8s.io sc",
        namespaced=False,
        strategy="strategies.storageclasses.StorageClassStrategy",
        returns_deleted=True,
        columns="""
            Name = class_name()
            Provisioner = provisioner
            ReclaimPolicy = reclaimPolicy|Delete
            VolumeBindingMode = volumeBindingMode|Immediate
            AllowVolumeExpansion = allowVolumeExpansion?false
            Age
        """,
    ),
    builtin_kind(
        storage.VolumeAttachment,
        "volumeattachments.storage.k8s.io",
        namespaced=False,
        subresources=(STATUS,),
        strategy="strategies.volumeattachments.VolumeAttachmentStrategy",
        unconditional_update=False,
        status_metadata=False,
        returns_deleted=True,
        columns="""
            Name
            Attacher#string:name = spec.attacher
            PV = spec.source.persistentVolumeName|
            Node = spec.nodeName
            Attached#boolean = status.attached
            Age
        """,
    ),
    builtin_kind(
        storage.CSIDriver,
        "csidrivers.storage.k8s.io",
        namespaced=False,
        strategy="strategies.csi.CSIDriverStrategy",
        unconditional_update=False,
        generation="late",
        returns_deleted=True,
        columns="""
            Name
            AttachRequired#boolean = spec.attachRequired?true
            PodInfoOnMount#boolean = spec.podInfoOnMount?false
            StorageCapacity#boolean = spec.storageCapacity?false
            TokenRequests = audiences(spec.tokenRequests)
            RequiresRepublish#boolean = spec.requiresRepublish?false
            Modes = join_words(spec.volumeLifecycleModes)
            Age
        """,
    ),
    builtin_kind(
        storage.CSINode,
        "csinodes.storage.k8s.io",
        namespaced=False,
        strategy="strategies.csi.CSINodeStrategy",
        unconditional_update=False,
        returns_deleted=True,
        columns="""
            Name
            Drivers#integer = count(spec.drivers)
            Age
        """,
    ),
    builtin_kind(
        storage.CSIStorageCapacity,
        "csistoragecapacities.storage.k8s.io",
        strategy="strategies.csi.CSIStorageCapacityStrategy",
        unconditional_update=False,
        columns="""
            Name
            StorageClassName = storageClassName
            Capacity = capacity?<unset>
        """,
    ),
    builtin_kind(
        storage.VolumeAttributesClass,
        "volumeattributesclasses.storage.k8s.io vac",
        namespaced=False,
        strategy="strategies.storageclasses.VolumeAttributesClassStrategy",
        returns_deleted=True,
        columns="""
            Name
            DriverName = driverName
            Age
        """,
    ),
)
