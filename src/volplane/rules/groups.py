"""Annotations and finalizers of group snapshots. `snapshots` has the functions for both kinds."""

_DOMAIN = "groupsnapshot.storage.kubernetes.io/"

IS_DEFAULT = _DOMAIN + "is-default-class"
BEING_CREATED = _DOMAIN + "volumegroupsnapshot-being-created"
BEING_DELETED = _DOMAIN + "volumegroupsnapshot-being-deleted"
SECRET_NAME = _DOMAIN + "deletion-secret-name"
SECRET_NAMESPACE = _DOMAIN + "deletion-secret-namespace"

BOUND = _DOMAIN + "volumegroupsnapshot-bound-protection"
CONTENT_BOUND = _DOMAIN + "volumegroupsnapshotcontent-bound-protection"
