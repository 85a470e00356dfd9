"""Spans for tests, written by hand: a claim, its volume, its attachment and its pod on one node."""

from __future__ import annotations

from collections.abc import Mapping

from volplane.base.span_store import StoredSpan
from volplane.base.trace import Span
from volplane.base.trace_context import trace_id

UID = "0d4b2a0e-6f5c-4b34-9d0e-3d1f0c2b7a11"
TRACE = trace_id(UID)
MILLISECOND = 1_000_000
EPOCH = 1_700_000_000_000_000_000


def stored(
    start: float,
    took: float,
    component: str,
    step: str,
    subject: str,
    *,
    id: str = "",
    parent: str = "",
    error: str = "",
    role: str = "up",
    traces: tuple[str, ...] = (TRACE,),
    cut_off: bool = False,
    **attrs: object,
) -> StoredSpan:
    """`start` and `took` in milliseconds; a span that did not end took a negative time."""
    at = EPOCH + int(start * MILLISECOND)
    end = at + int(took * MILLISECOND) if took >= 0 else 0
    return StoredSpan(
        role, Span(component, step, subject, at, end, attrs, error, traces, id, parent), is_cut_off=cut_off
    )


def write(
    start: float,
    verb: str,
    subject: str,
    changes: Mapping[str, tuple[str, str]],
    *,
    parent: str = "",
    user: str = "kubernetes-admin",
    manager: str = "kubectl",
    id: str = "",
    details: Mapping[str, object] = {},
) -> StoredSpan:
    """A write at the API server with its changes of state."""
    listed = [[field, before, after] for field, (before, after) in changes.items()]
    return stored(
        start,
        1,
        "apiserver",
        verb,
        subject,
        parent=parent,
        id=id or f"w{start}",
        user=user,
        manager=manager,
        changes=listed,
        **dict(details),  # type: ignore[arg-type]
    )


CLAIM, VOLUME, POD = "pvc/default/data", f"pv/pvc-{UID}", "pod/default/web"
ATTACHMENT, HANDLE = "va/csi-1", "volume/vol-1"
WORKER = "worker-1"
UNIQUE = "kubernetes.io/csi/ebs.csi.aws.com^vol-1"

FORWARDS = (
    write(0, "create", CLAIM, {"exists": ("", "yes"), "status.phase": ("", "Pending")}),
    write(2, "create", POD, {"exists": ("", "yes")}),
    stored(4, 2, "default-scheduler", "selected-node", CLAIM, id="s1", node=WORKER),
    stored(7, 2, "csi-provisioner", "write order", CLAIM, id="p1"),
    stored(10, 6, "csi-provisioner", "CreateVolume", CLAIM, id="p2"),
    stored(11, 4, "driver", "CreateVolume", f"volume/pvc-{UID}", id="d1", parent="p2"),
    stored(12, 2, "cloud", "CreateVolume", "volume/", id="c1", parent="d1"),
    stored(17, 3, "csi-provisioner", "save volume", CLAIM, id="p3"),
    write(18, "create", VOLUME, {"exists": ("", "yes")}, parent="p3"),
    write(21, "patch", VOLUME, {"status.phase": ("Pending", "Bound")}, parent="b1"),
    write(21.5, "patch", CLAIM, {"spec.volumeName": ("", f"pvc-{UID}")}, parent="b1"),
    stored(21, 2.5, "persistentvolume-controller", "volumeName", CLAIM, id="b1"),
    stored(25, 2, "persistentvolume-controller", "claim Bound", CLAIM, id="b2"),
    write(25.5, "patch", CLAIM, {"status.phase": ("Pending", "Bound")}, parent="b2"),
    write(26, "create", POD, {"spec.nodeName": ("", "worker-1")}, manager="kube-scheduler"),
    write(28, "patch", "node/worker-1", {f"status.volumesInUse[{UNIQUE}]": ("", "yes")}),
    stored(28, 3, "attachdetach-controller", "attach", ATTACHMENT, id="a1", node=WORKER),
    write(29, "create", ATTACHMENT, {"exists": ("", "yes")}, parent="a1"),
    write(32, "patch", ATTACHMENT, {"metadata.finalizers[external-attacher/x]": ("", "yes")}),
    stored(34, 5, "csi-attacher", "ControllerPublishVolume", ATTACHMENT, id="t1", node=WORKER),
    stored(36, 2, "cloud", "AttachVolume", HANDLE, id="c2", parent="t1"),
    write(40, "patch", ATTACHMENT, {"status.attached": ("", "true")}),
    write(42, "patch", "node/worker-1", {f"status.volumesAttached[{UNIQUE}]": ("", "yes")}),
    stored(44, 9, "kubelet", "NodeStageVolume", HANDLE, id="k1", node=WORKER),
    stored(46, 3, "host", "mkfs", "/dev/loop0", id="h1", parent="k1"),
    stored(54, 2, "kubelet", "NodePublishVolume", HANDLE, id="k2", node=WORKER),
    stored(57, 5, "kubelet", "StartContainer", POD, id="k3", node=WORKER),
)
BACK = (
    write(100, "delete", POD, {"metadata.deletionTimestamp": ("", "2026-11-18T08:00:00Z")}),
    stored(102, 3, "kubelet", "StopContainer", POD, id="k4", node=WORKER),
    stored(106, 2, "kubelet", "NodeUnpublishVolume", HANDLE, id="k5", node=WORKER),
    stored(109, 2, "kubelet", "NodeUnstageVolume", HANDLE, id="k6", node=WORKER),
    write(112, "patch", "node/worker-1", {f"status.volumesInUse[{UNIQUE}]": ("yes", "")}),
    write(114, "patch", "node/worker-1", {f"status.volumesAttached[{UNIQUE}]": ("yes", "")}),
    stored(116, 1, "attachdetach-controller", "detach", ATTACHMENT, id="a2", node=WORKER),
    write(117, "delete", ATTACHMENT, {"metadata.deletionTimestamp": ("", "2026-11-18T08:00:01Z")}),
    stored(118, 4, "csi-attacher", "ControllerUnpublishVolume", ATTACHMENT, id="t2", node=WORKER),
    stored(119, 2, "cloud", "DetachVolume", HANDLE, id="c3", parent="t2"),
    write(123, "patch", ATTACHMENT, {"exists": ("yes", "")}),
)
DELETE = (
    write(200, "delete", CLAIM, {"metadata.deletionTimestamp": ("", "2026-11-18T08:00:00Z")}),
    write(202, "patch", CLAIM, {"exists": ("yes", "")}),
    write(204, "patch", VOLUME, {"status.phase": ("Bound", "Released")}),
    stored(206, 4, "csi-provisioner", "DeleteVolume", VOLUME, id="p4"),
    stored(207, 2, "cloud", "DeleteVolume", HANDLE, id="c4", parent="p4"),
    write(212, "delete", VOLUME, {"exists": ("yes", "")}),
)
