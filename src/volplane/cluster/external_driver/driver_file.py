"""Read a driver file: YAML documents, one that describes the driver, and any number of Kubernetes objects.

The document that describes the driver has no `kind`. Relative paths are relative to the file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec import structs

from volplane.api.core import Secret
from volplane.api.meta import Resource
from volplane.api.snapshot import VolumeSnapshotClass
from volplane.api.storage import CSIDriver, StorageClass
from volplane.cluster.apply import parse_object
from volplane.cluster.external_driver.command import (
    BadCommand,
    build_command,
    parse_command,
    resolve_variables,
)
from volplane.cluster.external_driver.model import (
    SIDECARS,
    Command,
    DeploymentShape,
    ExternalDriver,
    InvalidDriver,
)

FIELDS = ("name", "command", "controller", "node", "deployment", "sidecars", "images", "env", "workingDir")
OF_COMMAND = ("command", "env", "workingDir")


def from_command(line: str, directory: str | Path = "") -> ExternalDriver:
    """A driver whose program is both controller and node service. Raises InvalidDriver."""
    made = parse_driver_command(line, directory)
    return ExternalDriver(controller=made, node=made)


def parse_driver_command(line: str, directory: str | Path = "") -> Command:
    """Parse the command of a driver. Raises InvalidDriver."""
    try:
        return parse_command(line, str(Path(directory).absolute()) if directory else os.getcwd())
    except BadCommand as error:
        raise InvalidDriver(f"the driver's command `{line}`: {error}") from error


def read_driver_file(path: str | Path) -> ExternalDriver:
    """Read a driver file. Raises InvalidDriver with the file, the field and the reason."""
    file = Path(path).expanduser().absolute()
    try:
        documents = list(yaml.load_all(file.read_text(), Loader=yaml.CSafeLoader))
    except OSError as error:
        raise InvalidDriver(f"{path}: {(error.strerror or str(error)).lower()}") from error
    except UnicodeDecodeError as error:
        raise InvalidDriver(
            f"{path} is not text: it must be YAML that describes the driver; use --driver-command for a"
            " program"
        ) from error
    except yaml.YAMLError as error:
        raise InvalidDriver(f"{path} is not YAML: {error}") from error
    try:
        return _parse_driver([d for d in documents if d is not None], str(file.parent))
    except BadField as error:
        raise InvalidDriver(f"{path}: {error}") from error


class BadField(ValueError):
    def __init__(self, field: str, reason: object) -> None:
        super().__init__(f"{field}: {reason}" if field else str(reason))


def _parse_driver(documents: list[Any], directory: str) -> ExternalDriver:
    for number, document in enumerate(documents, 1):
        if not isinstance(document, dict):
            raise BadField(f"document {number}", "must be a mapping")
    descriptions = [d for d in documents if "kind" not in d]
    if len(descriptions) != 1:
        raise BadField(
            "",
            f"there must be one document without `kind`, which describes the driver, not {len(descriptions)}",
        )
    external = _parse_description(descriptions[0], directory)
    return with_objects(external, [read_object(d) for d in documents if "kind" in d])


def _parse_description(data: Mapping[str, Any], directory: str) -> ExternalDriver:
    _refuse_unknown_fields(data, FIELDS, "")
    sides: dict[str, Command | None]
    if "command" in data:
        if both := [side for side in ("controller", "node") if side in data]:
            raise BadField(both[0], "the driver already has a command for all instances")
        one = _command({k: data[k] for k in OF_COMMAND if k in data}, "", directory)
        sides = {"controller": one, "node": one}
    else:
        sides = {s: _side(data[s], s, directory) if s in data else None for s in ("controller", "node")}
    if sides["node"] is None:
        raise BadField(
            "node" if "controller" in data else "command", "is missing: which program is the driver?"
        )
    return ExternalDriver(
        controller=sides["controller"],
        node=sides["node"],
        name=_text(data, "name"),
        shape=_shape(data),
        sidecars=_sidecars(data.get("sidecars", {})),
        images=_images(data.get("images", {}), directory),
    )


def _images(data: Any, directory: str) -> dict[str, Command]:
    made = {}
    for image, line in _texts(data, "images").items():
        try:
            made[image] = parse_command(line, directory)
        except BadCommand as error:
            raise BadField(f"images.{image}", error) from error
    return made


def _side(data: Any, field: str, directory: str) -> Command:
    if isinstance(data, str | list):
        data = {"command": data}
    if not isinstance(data, dict):
        raise BadField(field, "must be a command, or a mapping with a command")
    _refuse_unknown_fields(data, OF_COMMAND, field)
    if "command" not in data:
        raise BadField(f"{field}.command", "is missing")
    return _command(data, field, directory)


def _command(data: Mapping[str, Any], field: str, directory: str) -> Command:
    prefix = f"{field}." if field else ""
    given = data.get("workingDir", ".")
    if not isinstance(given, str):
        raise BadField(f"{prefix}workingDir", "must be a path")
    where = os.path.normpath(os.path.join(directory, os.path.expanduser(given)))
    if not os.path.isdir(where):
        raise BadField(f"{prefix}workingDir", f"{where} is not a directory")
    env = _texts(data.get("env", {}), f"{prefix}env")
    value = data["command"]
    try:
        if isinstance(value, str):
            made = parse_command(value, where, {**os.environ, **env})
            return structs.replace(
                made, env={**{k: resolve_variables(v, os.environ) for k, v in env.items()}, **made.env}
            )
        if isinstance(value, list) and value and all(isinstance(w, str | int | float) for w in value):
            return build_command([str(word) for word in value], env, where)
    except BadCommand as error:
        raise BadField(f"{prefix}command", error) from error
    raise BadField(f"{prefix}command", "must be a line or a list of words")


def _shape(data: Mapping[str, Any]) -> DeploymentShape:
    value = data.get("deployment", DeploymentShape.AUTO)
    try:
        return DeploymentShape(value)
    except ValueError:
        raise BadField("deployment", f"must be one of {', '.join(DeploymentShape)}, not {value}") from None


def _sidecars(data: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(data, dict):
        raise BadField("sidecars", "must map sidecars to lists of flags")
    _refuse_unknown_fields(data, SIDECARS, "sidecars")
    for name, flags in data.items():
        if not isinstance(flags, list) or not all(isinstance(f, str) for f in flags):
            raise BadField(f"sidecars.{name}", "must be a list of flags, such as [--timeout=30s]")
    return {name: tuple(flags) for name, flags in data.items()}


def _text(data: Mapping[str, Any], field: str) -> str:
    value = data.get(field, "")
    if not isinstance(value, str):
        raise BadField(field, "must be text")
    return value


def _texts(data: Any, field: str) -> dict[str, str]:
    if not isinstance(data, dict):
        raise BadField(field, "must be a mapping")
    if bad := [k for k, v in data.items() if isinstance(v, dict | list) or v is None]:
        raise BadField(f"{field}.{bad[0]}", "must be text")
    return {str(k): str(v).lower() if isinstance(v, bool) else str(v) for k, v in data.items()}


def _refuse_unknown_fields(data: Mapping[str, Any], known: tuple[str, ...], field: str) -> None:
    if unknown := [name for name in data if name not in known]:
        prefix = f"{field}." if field else ""
        raise BadField(f"{prefix}{unknown[0]}", f"is unknown; known fields are {', '.join(known)}")


def read_object(data: dict[str, Any]) -> Resource:
    """Convert an object of the file. Raises BadField."""
    name = (data.get("metadata") or {}).get("name", "")
    try:
        return parse_object(data)
    except (ValueError, KeyError, msgspec.ValidationError) as error:
        raise BadField(f"{data.get('kind')} {name}".strip(), error) from error


def with_objects(external: ExternalDriver, objects: list[Resource]) -> ExternalDriver:
    drivers = [o for o in objects if isinstance(o, CSIDriver)]
    if len(drivers) > 1:
        raise BadField(
            f"CSIDriver {drivers[1].name}", "there is already one, and a file describes one driver"
        )
    separate = (CSIDriver, StorageClass, VolumeSnapshotClass, Secret)
    return structs.replace(
        external,
        driver=drivers[0] if drivers else None,
        name=external.name or (drivers[0].name if drivers else ""),
        classes=tuple(o for o in objects if isinstance(o, StorageClass)),
        snapshot_classes=tuple(o for o in objects if isinstance(o, VolumeSnapshotClass)),
        secrets=tuple(o for o in objects if isinstance(o, Secret)),
        objects=tuple(o for o in objects if not isinstance(o, separate)),
    )
