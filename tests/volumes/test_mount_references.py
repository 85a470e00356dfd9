"""Which mounts keep a staged volume from being unstaged."""

from __future__ import annotations

from volplane.host.mounts import MountTable
from volplane.volumes.mount_references import find_references

ROOT = "/srv/n/1"
STAGED = "plugins/kubernetes.io/csi/d.test/0a1b/globalmount"
POD = "pods/u-1/volumes/kubernetes.io~csi/pv-1/mount"


def table(*targets: str, root: str = "/export") -> MountTable:
    own = f"30 22 0:51 /export {ROOT}/{STAGED} rw - nfs4 server:/export rw\n"
    others = (f"{31 + n} 22 0:51 {root} {t} rw - nfs4 server:/export rw\n" for n, t in enumerate(targets))
    return MountTable.parse(own + "".join(others))


def references(*targets: str, root: str = "/export") -> list[str]:
    return find_references(table(*targets, root=root), f"{ROOT}/{STAGED}", ROOT)


def test_another_node_of_the_machine_that_stages_the_same_volume_is_no_reference() -> None:
    assert references(f"/srv/n/2/{STAGED}") == []


def test_a_pod_of_another_node_is_no_reference() -> None:
    assert references(f"/srv/n/2/{POD}", "/srv/n/2/pods/u-2/volume-subpaths/pv-1/main/0") == []


def test_a_pod_of_this_node_is_one() -> None:
    assert references(f"{ROOT}/{POD}") == [f"{ROOT}/{POD}"]


def test_a_mount_that_no_kubelet_has_made_is_one() -> None:
    assert references("/data/manual") == ["/data/manual"]


def test_another_volume_of_this_node_with_the_same_directory_is_one_as_upstream() -> None:
    other = f"{ROOT}/plugins/kubernetes.io/csi/d.test/ffff/globalmount"
    assert references(other) == [other]


def test_another_directory_of_the_same_superblock_is_none() -> None:
    assert references(f"{ROOT}/plugins/kubernetes.io/csi/d.test/ffff/globalmount", root="/export/b") == []


def test_what_is_not_mounted_has_no_references() -> None:
    assert find_references(table(), "/srv/n/1/nowhere", ROOT) == []
