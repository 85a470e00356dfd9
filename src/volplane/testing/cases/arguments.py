"""Arguments that drivers tend to ignore or to trust: limits, names, ids, mount options, capabilities."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from google.protobuf.message import Message

from volplane.csi import convert, v1
from volplane.csi.outcome import CallError, Code
from volplane.host.mounts import MountEntry
from volplane.testing.case import SPEC, CaseFailure, CaseTable, NotSupported, require
from volplane.testing.socket_env import (
    BLOCK,
    SHARED,
    WRITER,
    DriverSocket,
    Mode,
    SocketEnv,
    describe_capability,
)
from volplane.testing.volume import VolumeUnderTest

case = CaseTable()

DEEPEST = 5  # directories that a path in an id climbs
NO_FILE_SYSTEM = "volplane-no-such-fs"
FILE_SYSTEMS = ("ext4", "xfs")
BYSTANDER_FILE = "not of a volume"  # a name that no case writes into a volume
INCOMPATIBLE = (Code.ALREADY_EXISTS, Code.FAILED_PRECONDITION, Code.INVALID_ARGUMENT)
FLAG = "noexec"  # an option of every file system, which can be seen at the target


# --- sizes


@case(
    "provision/limit only",
    "CreateVolume",
    "A volume with `limit_bytes` and without `required_bytes` is not larger than the limit, or the request is"
    " OUT_OF_RANGE.",
    "create",
)
async def limit_only(env: SocketEnv) -> None:
    volume = VolumeUnderTest(env, env.create_request(env.new_name()), WRITER)
    volume.request.capacity_range.CopyFrom(v1.CapacityRange(limit_bytes=env.size))
    env.volumes.append(volume)
    try:
        made = await volume.create()
    except CallError as error:
        require(
            error.code is Code.OUT_OF_RANGE,
            f"CreateVolume with limit_bytes {env.size} only: {error}, expected OK or OUT_OF_RANGE",
            section="CreateVolume Errors",
        )
        return
    require(
        made.capacity_bytes <= env.size,
        f"limit_bytes is {env.size}, required_bytes is not set, and the volume has {made.capacity_bytes}",
    )


# --- names and ids


@case(
    "provision/odd names",
    "CreateVolume",
    "Names may have any characters: different names are different volumes, none leads out of the driver's"
    " directories, and none to other volumes. A driver may refuse a name with INVALID_ARGUMENT.",
    "create",
)
async def odd_names(env: SocketEnv) -> None:
    mark = env.new_name("odd")
    names = (
        f"{mark}/a",
        f"{mark}_a",
        f"{mark}-a",
        f"{mark} a",
        f"{mark} ä 雪",
        f"../{mark}",
        f"../../{mark}",
        f"{mark}.\ta",
    )
    try:
        await _create_all(env, names)
    finally:
        strays = await env.host.call(_remove_strays, env, mark)
    require(not strays, f"a name with ../ has made {', '.join(strays)}, outside of the driver's directories")
    kept, _ = await env.create_with_data()
    if await _directory_of(env, kept):
        for name in (".", "..", f"{mark}/", f"{mark}/.."):
            await _expect_new_volume(env, name)


async def _create_all(env: SocketEnv, names: tuple[str, ...]) -> None:
    """Create a volume with each name, unless it is refused. Raises CaseFailure if two are one volume."""
    ids: dict[str, str] = {}
    for name in names:
        volume = VolumeUnderTest(env, env.create_request(name), WRITER)
        if not await _create_unless_refused(env, volume):
            continue
        require(volume.id, f"CreateVolume with the name {name!r} returned OK without a volume id")
        require(
            volume.id not in ids,
            f"the names {name!r} and {ids.get(volume.id)!r} are one volume, {volume.id}",
        )
        ids[volume.id] = name


async def _create_unless_refused(env: SocketEnv, volume: VolumeUnderTest) -> bool:
    """Whether the driver accepts the volume's name. Raises CaseFailure if it fails in another way."""
    try:
        await volume.create()
    except CallError as error:
        require(
            error.code is Code.INVALID_ARGUMENT,
            f"CreateVolume with the name {volume.request.name!r}: {error}, expected OK or INVALID_ARGUMENT",
            section="CreateVolume Errors",
        )
        return False
    env.volumes.append(volume)
    return True


def _remove_strays(env: SocketEnv, mark: str) -> list[str]:
    """Remove files with the mark in their name, outside of the driver's own directories; returns them."""
    found = _find_outside(env, mark)
    for path in found:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            Path(path).unlink(missing_ok=True)
    return found


def _find_outside(env: SocketEnv, mark: str) -> list[str]:
    own = {env.directory / "shared"} | {instance.root / "state" for instance in env.instances}
    around = env.directory.parent  # its other directories are not ours to search
    found = [os.path.join(around, name) for name in os.listdir(around) if mark in name]
    for directory, directories, files in os.walk(env.directory):
        directories[:] = [name for name in directories if Path(directory, name) not in own]
        found += [os.path.join(directory, name) for name in (*directories, *files) if mark in name]
    return found


async def _directory_of(env: SocketEnv, volume: VolumeUnderTest) -> Path | None:
    """The directory of a published volume, if it is below $SHARED_DIR or a $STATE_DIR: then nothing but the
    run's own files are next to it. None for volumes that are something else, or somewhere else.
    """
    mark = env.new_name("mark")
    await volume.write(volume.target(env.nodes[0]), b"of one volume", mark)
    return await env.host.call(_find_file, env, mark)


def _find_file(env: SocketEnv, name: str) -> Path | None:
    roots = [env.directory / "shared", *(instance.root / "state" for instance in env.instances)]
    for root in roots:
        for directory, directories, files in os.walk(root):
            if name in files:
                return Path(directory)
            directories[:] = [one for one in directories if not os.path.ismount(os.path.join(directory, one))]
    return None


class _OddlyNamedVolume(VolumeUnderTest):
    """A volume that may be a directory of other volumes: it is deleted when it is known to be none."""

    is_new = False

    def target_path(self, node: DriverSocket, pod: str) -> str:
        name = hashlib.sha256(self.request.name.encode()).hexdigest()  # a kubelet uses that of the object
        return f"{node.root}/pods/{pod}/volumes/kubernetes.io~csi/{name}/mount"

    async def _delete_by_force(self) -> list[str]:
        is_its_own = self.is_new or self.request.name not in self.id
        return await super()._delete_by_force() if is_its_own else []


async def _expect_new_volume(env: SocketEnv, name: str) -> None:
    """Create a volume with a name that leads to other volumes if it is used as a path."""
    volume = _OddlyNamedVolume(env, env.create_request(name), WRITER)
    if not await _create_unless_refused(env, volume):
        return
    target = await volume.attach_stage_publish(env.nodes[0])
    found = set(await env.host.call(os.listdir, env.nodes[0].seen_by_driver(target)))
    found.discard("lost+found")
    require(
        not found, f"the volume with the name {name!r} is not a new one: it has {', '.join(sorted(found))}"
    )
    volume.is_new = True


def _paths_to(name: str) -> list[str]:
    return ["../" * steps + name for steps in range(1, DEEPEST + 1)]


@case(
    "delete/path in an id",
    "DeleteVolume",
    "An id with `../`, `..`, `x/` or `x/ID` is an id that does not exist: nothing outside of the driver's"
    " directories is deleted, and no other volume.",
    "create",
)
async def delete_path(env: SocketEnv) -> None:
    kept, methods = _make_bystander(env), ["DeleteVolume"]
    if env.capabilities.has("snapshot"):
        methods.append("DeleteSnapshot")
    for method in methods:
        for id in _paths_to(kept.name):
            answer = await _delete_id(env, method, id)
            require(
                (kept / BYSTANDER_FILE).exists(),
                f"{method} of {id!r} ({answer}) has deleted a directory that is not the driver's",
                section=method,
            )
    shutil.rmtree(kept)
    (volume, written), node = await env.create_with_data(), env.nodes[0]
    directory = await _directory_of(env, volume)
    await volume.unpublish_unstage_detach(node)
    ids, answers = [f"x/{volume.id}", f"./{volume.id}", f"x/../{volume.id}"], []
    if directory is not None:
        ids += ["x/", f"{volume.id}/", ".", ".."]  # each could be the directory of all volumes, or its parent
    for method in methods:
        for id in ids:
            answers.append(f"{method} of {id!r} ({await _delete_id(env, method, id)})")
            if directory is not None and not directory.exists():
                await env.recover()  # its socket may be gone, too
                raise CaseFailure(f"{answers[-1]} has deleted another volume", section=f"{SPEC}: {method}")
    try:
        target = await volume.attach_stage_publish(node)
    except CallError as error:
        raise CaseFailure(f"the volume cannot be used after {', '.join(answers)}: {error}") from None
    await env.expect_data(volume, target, written, f"after {', '.join(answers)}")


async def _delete_id(env: SocketEnv, method: str, id: str) -> str:
    """Delete a volume or a snapshot, whatever comes of it; returns the code."""
    request: Message = (
        v1.DeleteVolumeRequest(volume_id=id, secrets=env.secrets)
        if method == "DeleteVolume"
        else v1.DeleteSnapshotRequest(snapshot_id=id, secrets=env.secrets)
    )
    return await _answer(env.controller, method, request)


@case(
    "publish/path in an id",
    "NodePublishVolume Errors",
    "An id with `../`, `..` or `x/` is an id that does not exist: no directory outside of the driver's is"
    " published, and none of other volumes.",
    "create",
)
async def publish_path(env: SocketEnv) -> None:
    node, kept = env.nodes[0], _make_bystander(env)
    known = (await env.create()).made.volume_context
    for id in _paths_to(kept.name):
        answer, names = await _publish_id(env, node, id, known)
        require(
            BYSTANDER_FILE not in names,
            f"NodePublishVolume of {id!r} ({answer}) has published a directory that is not the driver's",
        )
    shutil.rmtree(kept)
    if env.capabilities.has("given"):
        return  # nothing but the data of cases is written to them
    directory = await _directory_of(env, await env.create_and_publish())
    if directory is None:
        return
    around = set(directory.relative_to(env.directory).parts)
    for id in ("x/", ".", ".."):
        answer, names = await _publish_id(env, node, id, known)
        require(
            not around & names,
            f"NodePublishVolume of {id!r} ({answer}) has published a directory with other volumes",
        )


async def _publish_id(
    env: SocketEnv, node: DriverSocket, id: str, context: Mapping[str, str]
) -> tuple[str, set[str]]:
    """Publish a volume, whatever comes of it, and unpublish it; returns the code, and what it showed."""
    volume = VolumeUnderTest(env, env.create_request(env.new_name()), WRITER)
    volume.made = v1.Volume(volume_id=id, volume_context=context)
    target = volume.target(node)
    request = volume.mount_request(node, target, readonly=env.is_read_only)
    answer = await _answer(node, "NodePublishVolume", request)
    names = await env.host.call(_names_in, node.seen_by_driver(target))
    await _answer(node, "NodeUnpublishVolume", _unpublish_request(volume, target))
    return answer, names


def _names_in(directory: str) -> set[str]:
    try:
        return set(os.listdir(directory))
    except OSError:  # not published
        return set()


def _make_bystander(env: SocketEnv) -> Path:
    """A directory beside the driver's own ones, with a file."""
    path = env.directory / env.new_name("bystander")
    path.mkdir()
    (path / BYSTANDER_FILE).write_text("not the driver's")
    return path


def _unpublish_request(volume: VolumeUnderTest, target: str) -> v1.NodeUnpublishVolumeRequest:
    return v1.NodeUnpublishVolumeRequest(volume_id=volume.id, target_path=target)


async def _answer(remote: DriverSocket, method: str, request: Message) -> str:
    """The code of one call, whatever it is."""
    try:
        await remote.call_once(method, request)
    except CallError as error:
        return error.code.name
    return "OK"


# --- capabilities


@case(
    "validate/what cannot be done",
    "ValidateVolumeCapabilities",
    "What CreateVolume refuses as INVALID_ARGUMENT is not confirmed.",
    "controller",
    "provision",
)
async def not_confirmed(env: SocketEnv) -> None:
    volume, refused = await env.create(), []
    for capability in (BLOCK, SHARED, convert.capability(Mode.SINGLE_NODE_WRITER, fs_type=NO_FILE_SYSTEM)):
        try:
            await env.create(capability=capability)
        except NotSupported:
            refused.append(capability)
    if not refused:
        raise NotSupported("CreateVolume refuses no capability of those that are tried")
    for capability in refused:
        request = v1.ValidateVolumeCapabilitiesRequest(
            volume_id=volume.id,
            volume_context=volume.made.volume_context,
            volume_capabilities=[capability],
            parameters=env.parameters,
            secrets=env.secrets,
        )
        try:
            reply = await env.controller.call("ValidateVolumeCapabilities", request)
        except CallError:
            continue  # not confirmed either
        what = describe_capability(capability) + (
            f" as {capability.mount.fs_type}" if capability.mount.fs_type else ""
        )
        require(
            not reply.HasField("confirmed"),
            f"{what} is confirmed, and CreateVolume refuses it: it cannot be used",
        )


@case(
    "publish/mount flags",
    "Kubernetes: mountOptions of a StorageClass",
    "Mount flags have an effect at the target, or a call refuses them.",
    "create",
)
async def mount_flags(env: SocketEnv) -> None:
    volume, node = await _publish_or_skip(
        env, convert.capability(Mode.SINGLE_NODE_WRITER, mount_flags=[FLAG])
    )
    entry = await _mount_of(env, volume, node)
    require(
        os.statvfs(node.seen_by_driver(entry.target)).f_flag & os.ST_NOEXEC,
        f"mount flag {FLAG} is requested, no call refuses it, and {entry.target} is mounted without it",
    )


@case(
    "stage/file system type",
    "Kubernetes: csi.storage.k8s.io/fstype of a StorageClass",
    "A volume with a file system of its own has the requested type, or a call refuses it.",
    "create",
)
async def file_system_type(env: SocketEnv) -> None:
    tried = 0
    for wanted in await env.host.call(usable_file_systems):
        try:
            volume, node = await _publish_or_skip(
                env, convert.capability(Mode.SINGLE_NODE_WRITER, fs_type=wanted)
            )
        except NotSupported:
            continue
        entry = await _mount_of(env, volume, node)
        if not is_disk(entry):
            raise NotSupported(
                f"its volumes are not disks ({entry.target} is {entry.root} of {entry.source}), and have no"
                " type of their own"
            )
        require(
            entry.fstype == wanted,
            f"fs_type {wanted} is requested, no call refuses it, and {entry.target} is {entry.fstype}",
        )
        tried += 1
    if not tried:
        raise NotSupported(f"it refuses {' and '.join(FILE_SYSTEMS)}, or this machine cannot format them")


def is_disk(entry: MountEntry) -> bool:
    """Whether a whole disk is mounted: not a directory of a file system, nor one of a server or of memory."""
    return entry.root == "/" and entry.source.startswith("/dev/")


def usable_file_systems() -> list[str]:
    known = {line.split()[-1] for line in Path("/proc/filesystems").read_text().splitlines()}
    return [kind for kind in FILE_SYSTEMS if kind in known and shutil.which(f"mkfs.{kind}")]


async def _publish_or_skip(
    env: SocketEnv, capability: v1.VolumeCapability
) -> tuple[VolumeUnderTest, DriverSocket]:
    """A published volume with the capability. Raises NotSupported if a call refuses it."""
    volume, node = await env.create(capability=capability), env.nodes[0]
    try:
        await volume.attach_stage_publish(node)
    except CallError as error:
        raise NotSupported(f"it is refused: {error}") from None
    return volume, node


async def _mount_of(env: SocketEnv, volume: VolumeUnderTest, node: DriverSocket) -> MountEntry:
    entry = (await env.host.mounts()).at(volume.target(node))
    if entry is None:
        raise NotSupported(f"{volume.target(node)} is not a mount")
    return entry


@case(
    "publish/other capability",
    "NodePublishVolume Errors",
    "Publishing at a used target with another `readonly` is ALREADY_EXISTS, or the target changes. So is"
    " staging at a used path with another file system.",
    "create",
)
async def other_capability(env: SocketEnv) -> None:
    if env.is_read_only:
        raise NotSupported("the given volumes are always published with readonly")
    volume, written = await env.create_with_data()
    await _publish_with_readonly(env, volume, written)
    await _stage_with_other_file_system(env, volume)


async def _publish_with_readonly(env: SocketEnv, volume: VolumeUnderTest, written: bytes) -> None:
    node, target = env.nodes[0], volume.target(env.nodes[0])
    request = volume.mount_request(node, target, readonly=True)
    try:
        await node.call("NodePublishVolume", request)
    except CallError as error:
        require(
            error.code in INCOMPATIBLE,
            f"NodePublishVolume with readonly at a writable target: {error}, expected ALREADY_EXISTS",
        )
        await env.expect_data(volume, target, written, "after a refused NodePublishVolume")
        return
    try:
        await volume.write(node.seen_by_driver(target), b"no", "other")
    except OSError:
        return
    raise CaseFailure(
        f"NodePublishVolume with readonly returned OK for {target}, which is published writable and stays so:"
        " expected ALREADY_EXISTS"
    )


async def _stage_with_other_file_system(env: SocketEnv, volume: VolumeUnderTest) -> None:
    """Stage again with another type; nothing for volumes that are not disks with a known one."""
    node = env.nodes[0]
    if not env.capabilities.has("stage"):
        return
    entry = (await env.host.mounts()).at(volume.staging(node))
    if entry is None or not is_disk(entry) or entry.fstype not in FILE_SYSTEMS:
        return
    other = next(kind for kind in FILE_SYSTEMS if kind != entry.fstype)
    request = volume.stage_request(node)
    request.volume_capability.mount.fs_type = other
    try:
        await node.call("NodeStageVolume", request)
    except CallError as error:
        require(
            error.code in INCOMPATIBLE,
            f"NodeStageVolume as {other} of a volume that is staged as {entry.fstype}: {error}, expected"
            " ALREADY_EXISTS",
            section="NodeStageVolume Errors",
        )
        return
    now = (await env.host.mounts()).at(volume.staging(node))
    require(
        now is not None and now.fstype == other,
        f"NodeStageVolume as {other} returned OK for a volume that is staged as {entry.fstype} and stays so:"
        " expected ALREADY_EXISTS",
        section="NodeStageVolume Errors",
    )
