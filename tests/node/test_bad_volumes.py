"""Bad input for every volume type: refused by the API with its field, or told in an event of the pod."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from tests.node.node_env import node_env
from volplane.api.codec import convert
from volplane.api.core import ConfigMap, Secret, Volume
from volplane.api.errors import Invalid
from volplane.rules import in_tree

pytestmark = pytest.mark.root

Source = dict[str, Any]
ISCSI = {"targetPortal": "10.0.0.1", "iqn": "iqn.2026-01.com.example:a", "lun": 0}
DOWNWARD = {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}
TOKEN = {"path": "token", "expirationSeconds": 60}
TEMPLATE = {"spec": {"resources": {"requests": {"storage": "1Gi"}}}}

REFUSED: list[tuple[Source, str]] = [
    ({"emptyDir": {"sizeLimit": "-1Mi"}}, "emptyDir.sizeLimit: Forbidden: SizeLimit field must be a valid"),
    ({"hostPath": {"path": "/a/../b"}}, "hostPath.path: Invalid value: \"/a/../b\": must not contain '..'"),
    ({"hostPath": {"path": "/a", "type": "Folder"}}, 'hostPath.type: Unsupported value: "Folder"'),
    ({"configMap": {}}, "configMap.name: Required value"),
    ({"configMap": {"name": "a", "defaultMode": 0o1000}}, "configMap.defaultMode: Invalid value: 512"),
    ({"secret": {}}, "secret.secretName: Required value"),
    (
        {"secret": {"secretName": "a", "items": [{"key": "a", "path": "../a"}]}},
        "secret.items[0].path: Invalid value: \"../a\": must not contain '..'",
    ),
    ({"downwardAPI": {"items": [{"path": "a"}]}}, "one of fieldRef and resourceFieldRef is required"),
    ({"downwardAPI": {"items": [DOWNWARD | {"path": "/a"}]}}, 'Invalid value: "/a": must be a relative path'),
    (
        {"projected": {"sources": [{"serviceAccountToken": TOKEN}]}},
        "serviceAccountToken.expirationSeconds: Invalid value: 60: may not specify a duration less than 10",
    ),
    ({"persistentVolumeClaim": {}}, "persistentVolumeClaim.claimName: Required value"),
    ({"ephemeral": {}}, "ephemeral.volumeClaimTemplate: Required value"),
    ({"ephemeral": {"volumeClaimTemplate": TEMPLATE}}, "accessModes: Required value: at least 1 access mode"),
    ({"csi": {"driver": "-a"}}, 'csi.driver: Invalid value: "-a"'),
    ({"image": {"reference": ""}}, "image.reference: Required value"),
    (
        {"nfs": {"server": "a", "path": "exports"}},
        'nfs.path: Invalid value: "exports": must be an absolute path',
    ),
    ({"flexVolume": {}}, "flexVolume.driver: Required value"),
    (
        {"flexVolume": {"driver": "a/b", "options": {"kubernetes.io/fsType": "ext4"}}},
        "flexVolume.options[kubernetes.io/fsType]: Invalid value",
    ),
]
REPORTED: list[tuple[Source, str]] = [
    ({"emptyDir": {"medium": "Disk"}}, 'unknown storage medium "Disk"'),
    ({"emptyDir": {"medium": "HugePages-1Kibi"}}, 'unknown storage medium "HugePages-1Kibi"'),
    ({"hostPath": {"path": "/etc/passwd", "type": "Directory"}}, "/etc/passwd is not a directory"),
    ({"configMap": {"name": "missing"}}, 'configmaps "missing" not found'),
    (
        {"configMap": {"name": "settings", "items": [{"key": "b", "path": "b"}]}},
        "configmap references non-existent config key: b",
    ),
    ({"secret": {"secretName": "missing"}}, 'secrets "missing" not found'),
    (
        {"secret": {"secretName": "password", "items": [{"key": "b", "path": "b"}]}},
        "references non-existent secret key: b",
    ),
    (
        {"downwardAPI": {"items": [{"path": "a", "fieldRef": {"fieldPath": "spec.colour"}}]}},
        "unsupported fieldPath: spec.colour",
    ),
    (
        {
            "downwardAPI": {
                "items": [{"path": "a", "resourceFieldRef": {"containerName": "x", "resource": "limits.cpu"}}]
            }
        },
        "container x not found",
    ),
    ({"projected": {"sources": [{"configMap": {"name": "missing"}}]}}, 'configmaps "missing" not found'),
    ({"persistentVolumeClaim": {"claimName": "missing"}}, 'persistentvolumeclaims "missing" not found'),
    ({"csi": {"driver": "unknown.example.com"}}, "unknown.example.com"),
    ({"image": {"reference": "models/small:1"}}, 'image "models/small:1" cannot be mounted'),
    ({"nfs": {"server": "-o", "path": "/a"}}, "cannot mount -o:/a: mount.nfs would take it for an option"),
    ({"iscsi": ISCSI | {"iqn": "../a"}}, 'iqn "../a" is empty, begins with'),
    (
        {"flexVolume": {"driver": "example.com/missing"}},
        "FlexVolume driver example.com/missing was not found",
    ),
    ({"awsElasticBlockStore": {"volumeID": "aws:///disk"}}, 'volumeID: "aws:///disk" is not a volume id'),
    ({"rbd": {"monitors": ["m"], "image": "i"}}, "kubernetes.io/rbd was removed from Kubernetes in v1.31"),
    ({"fc": {"targetWWNs": ["a"], "lun": 0}}, "no volume plugin matched"),
    ({"gitRepo": {"repository": "a"}}, "no volume plugin matched"),
]


def pod_volume(source: Source) -> dict[str, Any]:
    return {"volumes": [{"name": "v", **source}], "mounts": [{"name": "v", "mountPath": "/v"}]}


def field_of(row: tuple[Source, str]) -> str:
    return next(iter(row[0]))


def test_every_type_has_bad_input() -> None:
    """Of the plugins that Kubernetes has removed, one stands for all."""
    removed = {plugin.field for plugin in in_tree.PLUGINS}
    fields = {field.encode_name for field in structs.fields(Volume)} - {"name"} - removed
    assert fields - {field_of(row) for row in (*REFUSED, *REPORTED)} == set()


@pytest.mark.parametrize("row", REFUSED, ids=field_of)
async def test_a_source_that_can_never_work_is_refused_with_its_field(row: tuple[Source, str]) -> None:
    source, why = row
    async with node_env() as here:
        with pytest.raises(Invalid) as refused:
            await here.pod(**pod_volume(source))
        assert "spec.volumes[0]" in str(refused.value)
        assert why in str(refused.value)


@pytest.mark.parametrize("row", REPORTED, ids=field_of)
async def test_a_source_that_cannot_be_mounted_is_told_and_holds_up_no_other_pod(
    row: tuple[Source, str],
) -> None:
    source, why = row
    async with node_env() as here:
        await here.start()
        meta = {"namespace": "default"}
        settings = {"metadata": {**meta, "name": "settings"}, "data": {"a": "1"}}
        await here.client.create(convert(ConfigMap, settings))
        password = {"metadata": {**meta, "name": "password"}, "data": {"a": "MQ=="}}
        await here.client.create(convert(Secret, password))
        bad = await here.pod("bad", **pod_volume(source))
        await here.wait_for_event(why)
        await here.pod("good", **pod_volume({"emptyDir": {}}))
        await here.wait_until_ready("good")
        await here.delete("bad")
        await here.wait_for_phase("gone", "bad")
        assert not [place for place in here.list_mounts() if bad.uid in place]
