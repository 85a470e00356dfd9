"""Sources of PersistentVolumes."""

from __future__ import annotations

from volplane.api.core import PersistentVolume

_OTHER_OBJECTS = ("claim_ref", "node_affinity", "capacity")


def source_name(volume: PersistentVolume) -> str:
    """The field of the spec that is its source, as in manifests: `hostPath`; empty if there is none."""
    spec = volume.spec
    fields = zip(spec.__struct_fields__, spec.__struct_encode_fields__, strict=True)
    found = (encoded for field, encoded in fields if field not in _OTHER_OBJECTS and _is_object(spec, field))
    return next(found, "")


def _is_object(spec: object, field: str) -> bool:
    return hasattr(getattr(spec, field), "__struct_fields__")
