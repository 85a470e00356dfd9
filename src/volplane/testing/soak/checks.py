"""What a life checks beside answers: the data of every published target, and mounts."""

from __future__ import annotations

from collections.abc import Sequence

from volplane.csi.outcome import Code
from volplane.host.mounts import MountTable, read_table
from volplane.testing.soak.model import Answer, Fact, Known, Model
from volplane.testing.soak.requests import LifeVolumes
from volplane.testing.soak.steps import Step, VolumeKind
from volplane.testing.soak.violation import Rule, Violation, ViolationFound
from volplane.testing.socket_env import SocketEnv
from volplane.testing.volume import DATA_FILE, checksum, read_data


class LifeChecks:
    def __init__(self, env: SocketEnv, model: Model, volumes: LifeVolumes) -> None:
        self._env, self._model, self._volumes = env, model, volumes
        self._mounted: set[str] = set()  # targets that were seen mounted
        self._count = 0

    def take_count(self) -> int:
        """The number of targets that were read since the last call."""
        count, self._count = self._count, 0
        return count

    async def after(self, answered: Sequence[tuple[Step, Answer]], at: int) -> None:
        """Check everything that must be true after these answers. Raises ViolationFound."""
        last = ", ".join(dict.fromkeys(str(step) for step, _ in answered)) or "a write"
        section = answered[0][0].call if answered else "NodePublishVolume"
        expected = [
            (self._volumes.target(volume, node, target), volume, node, target, data)
            for volume, node, target, data in self._model.expected_data()
        ]
        kinds = self._model.kinds
        reads = [
            (path, len(data or b""), "" if kinds[volume] is VolumeKind.BLOCK else DATA_FILE)
            for path, volume, _, _, data in expected
            if data is not None or kinds[volume] is not VolumeKind.BLOCK
        ]
        # In one go: a thread for each target would cost more than all calls of a life.
        async with self._env.file_lock:
            table, contents = await self._env.host.call(_look_at, reads)
        self._check_removed(table, answered, at)
        for path, volume, node, target, data in expected:
            where = f"volume {volume}, node {node}, target {target}"
            if table.at(path) is not None:
                self._mounted.add(path)
            elif path in self._mounted:
                text = f"after {last}: {where} is published and not mounted any more"
                raise ViolationFound(Violation(Rule.MOUNT, section, text, at))
            if path not in contents:  # a raw device to which nothing was written
                continue
            self._count += 1
            if wrong := describe_difference(contents[path], data):
                text = f"after {last}: {where}: {wrong}"
                raise ViolationFound(Violation(Rule.DATA, section, text, at))

    def _check_removed(self, table: MountTable, answered: Sequence[tuple[Step, Answer]], at: int) -> None:
        for step, answer in answered:
            if answer.code is not Code.OK or step.mistake:
                continue
            if step.call == "NodeUnpublishVolume":
                fact: Fact = ("published", step.volume, step.node, step.target)
                path = self._volumes.target(step.volume, step.node, step.target)
            elif step.call == "NodeUnstageVolume":
                fact = ("staged", step.volume, step.node)
                path = self._volumes.staging(step.volume, step.node)
            else:
                continue
            if self._model.knowledge(*fact) is not Known.NO:
                continue
            self._mounted.discard(path)
            if table.at(path) is not None:
                text = f"{step}: OK, and {path} is still mounted"
                raise ViolationFound(Violation(Rule.MOUNT, step.call, text, at))


def _look_at(reads: Sequence[tuple[str, int, str]]) -> tuple[MountTable, dict[str, bytes | OSError]]:
    """The mount table, and the data at each path."""
    table, contents = read_table(), dict[str, bytes | OSError]()
    for path, size, name in reads:
        try:
            contents[path] = read_data(path, size, name)
        except OSError as error:
            contents[path] = error
    return table, contents


def describe_difference(found: bytes | OSError, written: bytes | None) -> str:
    """What is wrong with the data of a volume; "" if it is what was written."""
    if isinstance(found, OSError):
        return f"cannot be read: {found.strerror}"
    if found == (written or b""):
        return ""
    if written is None:
        return f"a new volume has {len(found)} bytes of data that were never written to it"
    if not found:
        return f"the {len(written)} bytes that were written are gone"
    return (
        f"the data is not what was written: {len(found)} bytes, sha256 {checksum(found)[:16]};"
        f" written were {len(written)}, sha256 {checksum(written)[:16]}"
    )
