"""What the rows of several kinds have in common."""

from __future__ import annotations

from typing import Any

from volplane.api.kind import CRUD, Kind, Subresource
from volplane.api.meta import Resource

__all__ = ["CRUD"]

CREATE = ("create",)
CONNECT = ("create", "get")
PROXY = ("create", "delete", "get", "patch", "update")

STATUS = Subresource("status")
SCALE = Subresource("scale", kind="Scale", group="autoscaling", version="v1")

NAME_AND_AGE = "Name\nAge"
CONTAINERS = """
    Containers* = names(spec.template.spec.containers)
    Images* = images(spec.template.spec.containers)
"""
REPLICAS = """
    Current#integer = status.replicas
    Ready#integer = status.readyReplicas
    Age
"""
EVENT_TITLES = (
    "Last Seen & Type & Reason & Object & Subobject* & Source* & Message & First Seen* & Count* & Name*"
)
EVENT_REFERENCE = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")


def builtin_kind(type: type[Resource], names: str, *, version: str = "v1", **more: Any) -> Kind:
    """The row of a type. `names`: its resource with its group, and short names (`statefulsets.apps sts`)."""
    resource, *short = names.split()
    plural, _, group = resource.partition(".")
    return Kind(
        type,
        group,
        version,
        type.__name__,
        plural,
        short_names=tuple(short),
        legacy_field_errors="selectable" in more,
        **more,
    )
