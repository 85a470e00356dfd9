"""Class parameters: what is ours, what is the driver's, and what secrets are called."""

from __future__ import annotations

import pytest

from volplane.api.core import PersistentVolumeClaim, SecretReference
from volplane.api.meta import ObjectMeta
from volplane.sidecars.provisioner import parameters as p
from volplane.sidecars.provisioner.parameters import BadParameters, InvalidTemplate

CLAIM = PersistentVolumeClaim(
    metadata=ObjectMeta(name="data", namespace="team-a", annotations={"key": "from-annotation"})
)


def both(kind: str, name: str, namespace: str) -> dict[str, str]:
    return {f"{p.PREFIX}{kind}secret-name": name, f"{p.PREFIX}{kind}secret-namespace": namespace}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "ext4"),
        ({"fstype": "xfs"}, "xfs"),
        ({"FsType": "xfs"}, "xfs"),
        ({"csi.storage.k8s.io/fstype": "xfs"}, "xfs"),
    ],
)
def test_the_file_system(given: dict[str, str], expected: str) -> None:
    assert p.fs_type(given, "ext4") == expected


def test_two_spellings_of_the_file_system_are_one_too_many() -> None:
    with pytest.raises(BadParameters, match="both"):
        p.fs_type({"fstype": "xfs", p.FS_TYPE: "xfs"})


def test_the_driver_gets_what_is_not_ours() -> None:
    given = {"type": "gp3", "fstype": "xfs", "csiProvisionerSecretName": "s", p.FS_TYPE: "xfs"}
    given |= both("provisioner-", "a", "b") | both("", "a", "b")
    assert p.driver_parameters(given) == {"type": "gp3", "fstype": "xfs", "csiProvisionerSecretName": "s"}


@pytest.mark.parametrize(
    ("name", "namespace", "expected"),
    [
        ("plain", "default", ("plain", "default")),
        ("${pv.name}", "${pvc.namespace}", ("pvc-1", "team-a")),
        ("${pvc.name}-x", "${pv.name}", ("data-x", "pvc-1")),
        ("${pvc.namespace}.${pvc.name}", "default", ("team-a.data", "default")),
        ("${pvc.annotations['key']}", "default", ("from-annotation", "default")),
    ],
)
def test_templates(name: str, namespace: str, expected: tuple[str, str]) -> None:
    found = p.secret_reference(p.NODE_STAGE, both("node-stage-", name, namespace), "pvc-1", CLAIM)
    assert found == SecretReference(name=expected[0], namespace=expected[1])


@pytest.mark.parametrize(
    ("name", "namespace"),
    [
        ("${pvc.uid}", "default"),
        ("x", "${pvc.name}"),
        ("${pvc.annotations['other']}", "default"),
        ("Not A Name", "default"),
        ("x", "not.a.label"),
    ],
)
def test_templates_that_cannot_be_resolved(name: str, namespace: str) -> None:
    with pytest.raises(InvalidTemplate):
        p.secret_reference(p.PROVISIONER, both("provisioner-", name, namespace), "pvc-1", CLAIM)


def test_the_general_secret_stands_in_for_the_missing() -> None:
    given = both("", "general", "default") | both("node-stage-", "own", "default")
    general = SecretReference(name="general", namespace="default")
    assert p.secret_reference(p.CONTROLLER_EXPAND, given, "pvc-1", CLAIM) == general
    assert p.secret_reference(p.NODE_STAGE, given, "pvc-1", CLAIM) == SecretReference(
        name="own", namespace="default"
    )
    assert p.secret_reference(p.PROVISIONER, {}, "pvc-1", CLAIM) is None


@pytest.mark.parametrize(
    "given",
    [
        {"csi.storage.k8s.io/provisioner-secret-name": "a"},
        {"csi.storage.k8s.io/provisioner-secret-namespace": "a"},
        both("provisioner-", "", "a"),
        both("provisioner-", "a", ""),
        {**both("provisioner-", "a", "b"), "csiProvisionerSecretName": "a"},
    ],
)
def test_half_a_secret_or_two_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(BadParameters):
        p.secret_reference(p.PROVISIONER, given, "pvc-1", CLAIM)
