"""References from one object to another, and selectors of single values."""

from typing import ClassVar

from volplane.api.object import Object, Quantity, no_omitempty


class KeyToPath(Object):
    key: str = no_omitempty(factory=str)
    path: str = no_omitempty(factory=str)
    mode: int | None = None


class LocalObjectReference(Object):
    atomic: ClassVar[bool] = True
    name: str = ""


class ObjectFieldSelector(Object):
    atomic: ClassVar[bool] = True
    api_version: str = ""
    field_path: str = no_omitempty(factory=str)


class ResourceFieldSelector(Object):
    atomic: ClassVar[bool] = True
    container_name: str = ""
    resource: str = no_omitempty(factory=str)
    divisor: Quantity = ""


class TypedLocalObjectReference(Object):
    atomic: ClassVar[bool] = True
    api_group: str | None = None
    kind: str = no_omitempty(factory=str)
    name: str = no_omitempty(factory=str)


class TypedObjectReference(Object):
    api_group: str | None = None
    kind: str = no_omitempty(factory=str)
    name: str = no_omitempty(factory=str)
    namespace: str | None = None


class ConfigMapKeySelector(Object):
    atomic: ClassVar[bool] = True
    name: str = ""
    key: str = no_omitempty(factory=str)
    optional: bool | None = None


class SecretKeySelector(Object):
    atomic: ClassVar[bool] = True
    name: str = ""
    key: str = no_omitempty(factory=str)
    optional: bool | None = None


class FileKeySelector(Object):
    atomic: ClassVar[bool] = True
    volume_name: str = no_omitempty(factory=str)
    path: str = no_omitempty(factory=str)
    key: str = no_omitempty(factory=str)
    optional: bool | None = None


class SecretReference(Object):
    atomic: ClassVar[bool] = True
    name: str = ""
    namespace: str = ""


class ObjectReference(Object):
    atomic: ClassVar[bool] = True
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    resource_version: str = ""
    field_path: str = ""
