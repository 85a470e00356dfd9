"""Collect what is needed to find out what happened in a cluster: logs, objects, and the machine's state.

Keys, tokens and the values of Secrets are left out.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import stat
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from volplane.api import kinds
from volplane.api.kinds import Kind
from volplane.base.version import package_version
from volplane.cluster.data_directory import DataDirectory, node_name
from volplane.cluster.data_version import read_version
from volplane.cluster.fsck import CheckFinding
from volplane.host import devices
from volplane.host.mounts import read_table
from volplane.store import StoreFailed, StoreRecord
from volplane.store.sqlite.backup import read_database

REDACTED = "<redacted>"
_TOKEN = re.compile(rb"([?&]token=)[^&\s]+")  # in the link that opens the live page
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
PREFIX = "/registry/"


class ExportSummary(Struct, frozen=True, rename="camel"):
    directory: str
    logs: int  # files
    objects: int
    problems: tuple[str, ...] = ()  # what could not be read


class MachineState(Struct, frozen=True, rename="camel"):
    volplane: str
    python: str
    kernel: str
    data_version: int
    free: int  # bytes on the disk of the data directory
    mounts: tuple[str, ...]
    loop_devices: dict[str, str]


def export_logs(
    layout: DataDirectory, target: Path, findings: list[CheckFinding], report: Callable[[str], None]
) -> ExportSummary:
    """Write everything below `target`, which exists. What cannot be read is left out and named."""
    problems: list[str] = []
    logs = 0
    for source, name in _list_logs(layout):
        report(name)
        try:
            logs += _copy(source, target / name)
        except FileNotFoundError:
            continue  # rotated or removed meanwhile
        except OSError as error:
            problems.append(f"{source}: {error.strerror}")
    report("objects")
    objects = 0
    try:
        objects = _export_objects(layout.state, target / "objects")
    except StoreFailed as error:
        problems.append(f"{layout.state}: {error}")
    _write_json(target / "machine.json", _read_machine(layout))
    _write_json(target / "fsck.json", findings)
    return ExportSummary(str(target), logs, objects, tuple(problems))


def _list_logs(layout: DataDirectory) -> Iterator[tuple[Path, str]]:
    for path in sorted(layout.run.glob("*.log*")):
        yield path, f"run/{path.name}"
    for node in sorted(layout.nodes.glob("[0-9]*")):
        name = f"nodes/{node_name(int(node.name))}"
        launcher = node / "containers" / "launcher.log"
        if launcher.exists():
            yield launcher, f"{name}/launcher.log"
        for path in sorted((node / "logs").glob("*/*/*.log*")):
            yield path, f"{name}/{path.relative_to(node / 'logs')}"


def _copy(source: Path, target: Path) -> bool:
    """Copy a regular file; False if it is something else."""
    descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target, "wb") as copy:
            copy.writelines(_TOKEN.sub(rb"\1" + REDACTED.encode(), line) for line in file)
    return True


def _export_objects(state: Path, target: Path) -> int:
    """One file per resource, with a list of its objects."""
    known = {kind.stored_as or kind.resource: kind for kind in kinds.ALL}
    objects = defaultdict[str, list[Any]](list)
    for record in read_database(state):
        resource = record.key.removeprefix(PREFIX).partition("/")[0]
        objects[resource].append(_decode(known.get(resource), record))
    target.mkdir()
    for resource, items in objects.items():
        _write_json(target / f"{resource}.json", {"kind": "List", "apiVersion": "v1", "items": items})
    return sum(map(len, objects.values()))


def _decode(kind: Kind | None, record: StoreRecord) -> Any:
    head = f'"kind":"{kind.kind}","apiVersion":"{kind.api_version}",'.encode() if kind else b""
    text = b'{%b"metadata":{"resourceVersion":"%d",%b' % (head, record.revision, record.value)
    try:
        found = msgspec.json.decode(text)
    except ValueError as error:
        return {"key": record.key, "unreadable": str(error)}
    return redact_secret(found) if kind is not None and kind.kind == "Secret" else found


def redact_secret(secret: dict[str, Any]) -> dict[str, Any]:
    """A Secret without its values."""
    for field in ("data", "stringData"):
        if isinstance(secret.get(field), dict):
            secret[field] = dict.fromkeys(secret[field], REDACTED)
    annotations = secret["metadata"].get("annotations") or {}
    if LAST_APPLIED in annotations:
        annotations[LAST_APPLIED] = REDACTED
    return secret


def _read_machine(layout: DataDirectory) -> MachineState:
    directory = str(layout.directory)
    return MachineState(
        volplane=package_version(),
        python=sys.version,
        kernel=" ".join(platform.uname()),
        data_version=read_version(layout).version,
        free=shutil.disk_usage(directory).free,
        mounts=tuple(
            f"{entry.source} {entry.target} {entry.fstype}" for entry in read_table().under(directory)
        ),
        loop_devices=devices.loops_below(directory),
    )


def _write_json(path: Path, content: object) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")
