"""The graph of the node authorizer: which nodes need which objects, kept as counts.

A pod links the objects it references to its node, a volume links itself and its secrets to its claim, an
attachment links itself to its node. Every question takes one or two lookups. A mirror pod links nothing:
otherwise a node could create one to read any object.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from volplane.api.annotations import MIRROR_POD_ANNOTATION
from volplane.api.core import PersistentVolume, Pod
from volplane.api.storage import VolumeAttachment
from volplane.apiserver.auth.nodes import references

SECRET, CONFIG_MAP, CLAIM, ACCOUNT = "secrets", "configmaps", "persistentvolumeclaims", "serviceaccounts"

ObjectRef = tuple[str, str]  # plural, namespace/name


class _PodReferences(NamedTuple):
    uid: str
    node: str
    debuggers: int  # ephemeral containers: the only part of a pod that can add references later
    objects: frozenset[ObjectRef]


class _VolumeReferences(NamedTuple):
    claim: str  # namespace/name
    secrets: frozenset[str]


class NodeGraph:
    """A store index of pods, volumes and attachments: see `auth.store_index`."""

    def __init__(self) -> None:
        self._pods: dict[str, _PodReferences] = {}
        self._users: dict[ObjectRef, dict[str, int]] = {}  # pods per node that reference it
        self._volumes: dict[str, _VolumeReferences] = {}
        self._secret_volumes: dict[str, set[str]] = {}
        self._attachments: dict[str, str] = {}

    # --- queries

    def runs_pod(self, node: str, key: str) -> bool:
        known = self._pods.get(key)
        return known is not None and known.node == node

    def uses_object(self, node: str, plural: str, key: str) -> bool:
        """Return whether a pod of the node references it, directly or through a volume."""
        if node in self._users.get((plural, key), ()):
            return True
        return plural == SECRET and any(
            self.uses_volume(node, volume) for volume in self._secret_volumes.get(key, ())
        )

    def uses_volume(self, node: str, name: str) -> bool:
        known = self._volumes.get(name)
        return known is not None and node in self._users.get((CLAIM, known.claim), ())

    def has_attachment(self, node: str, name: str) -> bool:
        return self._attachments.get(name) == node

    # --- updates from the store

    def put(self, key: str, obj: Any) -> None:
        match obj:
            case Pod():
                self._put_pod(key, obj)
            case PersistentVolume():
                self._put_volume(key, obj)
            case VolumeAttachment():
                self._attachments[key] = obj.spec.node_name

    def drop(self, type: type[Any], key: str) -> None:
        if type is Pod:
            self._drop_pod(key)
        elif type is PersistentVolume:
            self._drop_volume(key)
        else:
            self._attachments.pop(key, None)

    def _put_pod(self, key: str, pod: Pod) -> None:
        node, uid, debuggers = pod.spec.node_name, pod.metadata.uid, len(pod.spec.ephemeral_containers)
        known = self._pods.get(key)
        if known is not None:
            if (known.uid, known.node, known.debuggers) == (uid, node, debuggers):
                return  # the references of a pod are immutable
            self._drop_pod(key)
        if not node:
            return
        added = self._pods[key] = _PodReferences(uid, node, debuggers, _referenced_objects(pod))
        for ref in added.objects:
            users = self._users.setdefault(ref, {})
            users[node] = users.get(node, 0) + 1

    def _drop_pod(self, key: str) -> None:
        known = self._pods.pop(key, None)
        if known is None:
            return
        for ref in known.objects:
            users = self._users[ref]
            users[known.node] -= 1
            if not users[known.node]:
                del users[known.node]
            if not users:
                del self._users[ref]

    def _put_volume(self, name: str, volume: PersistentVolume) -> None:
        claim = volume.spec.claim_ref
        added = None
        if claim is not None:
            secrets = frozenset(f"{space}/{secret}" for space, secret in references.volume_secrets(volume))
            added = _VolumeReferences(f"{claim.namespace}/{claim.name}", secrets)
        if added == self._volumes.get(name):
            return
        self._drop_volume(name)
        if added is not None:
            self._volumes[name] = added
            for secret in added.secrets:
                self._secret_volumes.setdefault(secret, set()).add(name)

    def _drop_volume(self, name: str) -> None:
        known = self._volumes.pop(name, None)
        for secret in known.secrets if known is not None else ():
            volumes = self._secret_volumes[secret]
            volumes.discard(name)
            if not volumes:
                del self._secret_volumes[secret]


def _referenced_objects(pod: Pod) -> frozenset[ObjectRef]:
    if MIRROR_POD_ANNOTATION in pod.metadata.annotations:
        return frozenset()
    space = pod.metadata.namespace
    found = [(SECRET, name) for name in references.secrets(pod)]
    found += [(CONFIG_MAP, name) for name in references.config_maps(pod)]
    found += [(CLAIM, name) for name in references.claims(pod)]
    if pod.spec.service_account_name:
        found.append((ACCOUNT, pod.spec.service_account_name))
    return frozenset((plural, f"{space}/{name}") for plural, name in found)
