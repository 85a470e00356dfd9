"""A class of the in-tree EBS plugin, and the volume that a provisioner creates for it.

Tests with our provisioner and with upstream's compare their volumes with the same expectation.
"""

from __future__ import annotations

from typing import Any

PLUGIN, DRIVER = "kubernetes.io/aws-ebs", "ebs.csi.aws.com"
ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"


def storage_class(name: str, **more: Any) -> dict[str, Any]:
    """For disks in the first zone, with a size that needs more than its share of IOPS."""
    zone = {"key": ZONE, "values": ["us-east-1a"]}
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": PLUGIN,
        "parameters": {"type": "io1", "iopsPerGB": "10", "fsType": "xfs"},
        "allowVolumeExpansion": True,
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowedTopologies": [{"matchLabelExpressions": [zone]}],
        **more,
    }


def check_volume(volume: dict[str, Any]) -> str:
    """Compare a volume of this class with what upstream creates, and return the id of its disk."""
    metadata, spec = volume["metadata"], volume["spec"]
    disk: str = spec["awsElasticBlockStore"]["volumeID"]
    notes = {
        "pv.kubernetes.io/provisioned-by": PLUGIN,
        "pv.kubernetes.io/migrated-to": DRIVER,
        "volume.kubernetes.io/provisioner-deletion-secret-name": "",
        "volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
    }
    assert metadata["annotations"] == notes
    assert metadata["labels"] == {ZONE: "us-east-1a", REGION: "us-east-1"}
    assert {
        "external-provisioner.volume.kubernetes.io/finalizer",
        "kubernetes.io/pv-protection",
    } <= set(metadata["finalizers"])
    needs = [
        {"key": ZONE, "operator": "In", "values": ["us-east-1a"]},
        {"key": REGION, "operator": "In", "values": ["us-east-1"]},
    ]
    ours = {key: value for key, value in spec.items() if key not in ("claimRef", "storageClassName")}
    assert ours == {
        "accessModes": ["ReadWriteOnce"],
        "awsElasticBlockStore": {"volumeID": disk, "fsType": "xfs"},
        "capacity": {"storage": "4Gi"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": needs}]}},
        "persistentVolumeReclaimPolicy": "Delete",
        "volumeMode": "Filesystem",
    }
    return disk


def check_claim(claim: dict[str, Any]) -> None:
    notes = claim["metadata"]["annotations"]
    assert notes["volume.kubernetes.io/storage-provisioner"] == DRIVER
    assert notes["volume.beta.kubernetes.io/storage-provisioner"] == DRIVER
    assert notes["pv.kubernetes.io/migrated-to"] == DRIVER
