"""RBAC bindings for the sidecars in a user's manifests.

Upstream's manifests bind roles that are defined elsewhere, in the repository of each sidecar. Someone who
starts a cluster with such a manifest wants its sidecars to work, so their accounts get the roles. Manifests
that are applied later get nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from volplane.node.image_overrides import ImageOverrides, image_repository

RBAC = "rbac.authorization.k8s.io"
LEASES = "volplane:csi-leases"
# Sidecars by the name of their image.
SIDECARS = {f"csi-{name}": name for name in ("provisioner", "attacher", "resizer", "snapshotter")}

# What upstream's programs need beyond ours, by sidecar: those that run in their own images get it, too.
UPSTREAM_ONLY: Mapping[str, tuple[Mapping[str, list[str]], ...]] = {
    "snapshotter": tuple(
        {"apiGroups": [group], "resources": [kind, f"{kind}/status"], "verbs": ["update"]}
        for group, kind in (
            ("snapshot.storage.k8s.io", "volumesnapshotcontents"),
            ("groupsnapshot.storage.k8s.io", "volumegroupsnapshotcontents"),
        )
    )
}

Manifest = dict[str, Any]


def bind_sidecar(name: str, namespace: str, account: str, sidecar: str) -> Manifest:
    """Bind an account to the role of a sidecar; all drivers' sidecars have the same roles."""
    return bind_role(name, namespace, account, f"volplane:external-{sidecar}")


def bind_role(name: str, namespace: str, account: str, role: str) -> Manifest:
    """Bind an account to a role in the whole cluster."""
    return _binding("ClusterRoleBinding", name, "", role, namespace, account)


def bind_leases(name: str, namespace: str, account: str) -> Manifest:
    """Allow leader election with Leases in the namespace."""
    return _binding("RoleBinding", name, namespace, LEASES, namespace, account)


def find_grants(manifests: Iterable[Manifest], programs: ImageOverrides) -> Iterator[Manifest]:
    """The bindings of all sidecars in the pods of manifests, with a role for what only upstream's need."""
    wanted: dict[tuple[str, str], set[tuple[str, bool]]] = {}
    for thing in manifests:
        for pod in _find_pods(thing.get("spec")):
            namespace = str((thing.get("metadata") or {}).get("namespace") or "default")
            account = str(pod.get("serviceAccountName") or pod.get("serviceAccount") or "default")
            wanted.setdefault((namespace, account), set()).update(_find_sidecars(pod, programs))
    for (namespace, account), sidecars in wanted.items():
        for sidecar, is_own_image in sorted(sidecars):
            name = f"volplane:{namespace}:{account}:{sidecar}"
            yield bind_sidecar(name, namespace, account, sidecar)
            if is_own_image and sidecar in UPSTREAM_ONLY:
                role = f"volplane:upstream-{sidecar}"
                yield {
                    "apiVersion": f"{RBAC}/v1",
                    "kind": "ClusterRole",
                    "metadata": {"name": role},
                    "rules": list(UPSTREAM_ONLY[sidecar]),
                }
                yield bind_role(f"{name}:upstream", namespace, account, role)
        if sidecars:
            yield bind_leases(f"volplane:{account}:leases", namespace, account)


def _find_pods(spec: Any) -> Iterator[Mapping[str, Any]]:
    """The pod specs in an object's spec: itself, or those of templates."""
    if not isinstance(spec, dict):
        return
    if isinstance(spec.get("containers"), list):
        yield spec
    for part in ("template", "jobTemplate"):
        if isinstance(spec.get(part), dict):
            yield from _find_pods(spec[part].get("spec"))


def _find_sidecars(pod: Mapping[str, Any], programs: ImageOverrides) -> Iterator[tuple[str, bool]]:
    """The sidecars, and whether they run in their own images."""
    for container in (*(pod.get("initContainers") or ()), *pod["containers"]):
        if not isinstance(container, dict) or container.get("command"):
            continue
        image = str(container.get("image", ""))
        sidecar = SIDECARS.get(image_repository(image).rpartition("/")[2])
        program = programs.get(image)
        if sidecar is not None and (program is None or program.is_own_image):
            yield sidecar, program is not None


def _binding(kind: str, name: str, where: str, role: str, namespace: str, account: str) -> Manifest:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": kind,
        "metadata": {"name": name, **({"namespace": where} if where else {})},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }
