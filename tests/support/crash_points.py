"""The failpoints at which processes are killed, listed so that a missing one is noticed.

`START`, `JOURNEY` and `STOP` are reached regardless of how the roles are divided into processes. `ROLES`
lists what each role reaches when all of them, including the driver and its sidecars, are separate processes;
the API server and the disk service reach the same failpoints in both cases.
"""

from __future__ import annotations

from tests.support.crash import Phase, Point


def points(phase: Phase, table: str) -> list[Point]:
    """Parse lines such as `rpc:NodeStageVolume  before served after`; `after#2` is the second time."""
    rows = (line.split() for line in table.strip().splitlines())
    return [_point(phase, name, moment) for name, *moments in rows for moment in moments]


def _point(phase: Phase, name: str, moment: str) -> Point:
    when, _, count = moment.partition("#")
    return Point(phase, f"{name}:{when}", int(count or 1))


START = points(
    Phase.START,
    """
    host:share                                     before after
    rpc:ControllerGetCapabilities                  before after
    rpc:GetInfo                                    before after
    rpc:GetPluginCapabilities                      before after
    rpc:GetPluginInfo                              before after
    rpc:NodeGetInfo                                before after
    rpc:NotifyRegistrationStatus                   before after
    rpc:Probe                                      before after
    write:create:csidrivers.storage.k8s.io         before after
    write:create:csinodes.storage.k8s.io           before after
    write:create:daemonsets.apps                   before after
    write:create:deployments.apps                  before after
    write:create:leases.coordination.k8s.io        before after
    write:create:namespaces                        before after
    write:create:nodes                             before after
    write:create:pods                              before after
    write:create:pods/binding                      before after
    write:create:replicasets.apps                  before after
    write:create:serviceaccounts                   before after
    write:create:storageclasses.storage.k8s.io     before after
    write:patch:csinodes.storage.k8s.io            before after
    write:patch:daemonsets.apps/status             before after
    write:patch:deployments.apps/status            before after
    write:patch:nodes/status                       before after
    write:patch:pods/status                        before after
    write:patch:replicasets.apps/status            before after
    """,
)
JOURNEY = points(
    Phase.JOURNEY,
    """
    write:create:persistentvolumeclaims            before after
    write:create:pods                              before after
    write:create:events                            before after
    write:patch:persistentvolumeclaims             before after
    rpc:CreateVolume                               before served after
    cloud:CreateVolume                             asked intent effect result
    write:create:persistentvolumes                 before after
    write:patch:persistentvolumes                  before after
    write:patch:persistentvolumes/status           before after
    write:patch:persistentvolumeclaims/status      before after
    write:create:pods/binding                      before after
    write:create:volumeattachments.storage.k8s.io  before after
    write:patch:volumeattachments.storage.k8s.io   before after
    rpc:ControllerPublishVolume                    before served after
    cloud:AttachVolume                             asked intent effect result
    host:loop_attach                               before after
    write:patch:volumeattachments.storage.k8s.io/status  before after
    write:patch:nodes/status                       before after
    file:vol_data:write                            before after
    file:vol_data.json                             half
    rpc:NodeStageVolume                            before served after
    host:mkfs                                      before after
    host:fsck                                      before after
    host:mount                                     before after
    rpc:NodePublishVolume                          before served after
    host:bind                                      before after
    container:start                                before after
    write:patch:pods/status                        before after
    container:stop                                 before asked after
    rpc:NodeUnpublishVolume                        before served after
    rpc:NodeUnstageVolume                          before served after
    host:unmount                                   before after
    file:vol_data:remove                           before after
    write:delete:pods                              before after
    container:remove                               before after
    write:delete:volumeattachments.storage.k8s.io  before after
    rpc:ControllerUnpublishVolume                  before served after
    cloud:DetachVolume                             asked intent effect result
    host:loop_detach                               before after
    write:patch:nodes                              before after
    write:delete:persistentvolumeclaims            before after
    rpc:DeleteVolume                               before served after
    cloud:DeleteVolume                             asked intent effect result
    write:delete:persistentvolumes                 before after
    pod:network                                    before after
    file:network.json                              half
    """,
)
# Failpoints that one volume reaches twice: stage and publish, unpublish and unstage, attach and detach, and
# the node's status, which is written at both ends.
AGAIN = points(
    Phase.JOURNEY,
    """
    file:vol_data:write                            before#2 after#2
    file:vol_data.json                             half#2
    file:vol_data:remove                           before#2 after#2
    host:unmount                                   before#2 after#2
    write:patch:volumeattachments.storage.k8s.io   before#2 after#2
    write:patch:nodes/status                       before#2 after#2 after#3 after#4
    """,
)
STOP = points(
    Phase.STOP,
    """
    container:stop                                 before asked after
    rpc:NodeUnpublishVolume                        before served after
    rpc:NodeUnstageVolume                          before served after
    host:unmount                                   before after
    file:vol_data:remove                           before after
    write:patch:nodes/status                       before after
    host:loop_detach                               before after
    """,
)
ROLES = {
    "controller-manager": """
        ask:patch:persistentvolumeclaims               before after
        ask:patch:persistentvolumeclaims/status        before after
        ask:patch:persistentvolumes                    before after
        ask:patch:persistentvolumes/status             before after
        ask:create:volumeattachments.storage.k8s.io    before after
        ask:patch:nodes/status                         before after
        ask:create:events                              before after
        ask:delete:volumeattachments.storage.k8s.io    before after
        """,
    "scheduler": """
        ask:patch:persistentvolumeclaims               before after
        ask:create:pods/binding                        before after
        ask:create:events                              before after
        """,
    "provisioner": """
        ask:patch:persistentvolumeclaims               before after
        rpc:CreateVolume                               before after
        ask:create:persistentvolumes                   before after
        ask:create:events                              before after
        rpc:DeleteVolume                               before after
        ask:patch:persistentvolumes                    before after
        ask:delete:persistentvolumes                   before after
        """,
    "attacher": """
        ask:patch:persistentvolumes                    before after
        ask:patch:volumeattachments.storage.k8s.io     before after
        rpc:ControllerPublishVolume                    before after
        ask:patch:volumeattachments.storage.k8s.io/status  before after
        rpc:ControllerUnpublishVolume                  before after
        """,
    "driver-controller": """
        rpc:CreateVolume                               served
        rpc:ControllerPublishVolume                    served
        rpc:ControllerUnpublishVolume                  served
        rpc:DeleteVolume                               served
        """,
    "driver-node": """
        host:mkfs                                      before after
        host:fsck                                      before after
        host:mount                                     before after
        rpc:NodeStageVolume                            served
        host:bind                                      before after
        rpc:NodePublishVolume                          served
        rpc:NodeUnpublishVolume                        served
        host:unmount                                   before after
        rpc:NodeUnstageVolume                          served
        """,
    "node": """
        file:vol_data:write                            before after
        file:vol_data.json                             half
        rpc:NodeStageVolume                            before after
        ask:create:serviceaccounts/token               before after
        host:mount                                     before after
        rpc:NodePublishVolume                          before after
        file:etc-hosts                                 half
        file:resolv.conf                               half
        container:start                                before after
        ask:create:events                              before after
        ask:patch:pods/status                          before after
        container:stop                                 before asked after
        rpc:NodeUnpublishVolume                        before after
        rpc:NodeUnstageVolume                          before after
        host:unmount                                   before after
        file:vol_data:remove                           before after
        container:remove                               before after
        ask:patch:nodes/status                         before after
        ask:delete:pods                                before after
        """,
}
