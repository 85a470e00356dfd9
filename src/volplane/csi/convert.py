"""Kubernetes' access modes and volume modes as CSI capabilities.

Three callers treat a set of modes differently: the attacher needs one mode for the set, the node uses the
volume's first mode, the provisioner sends one capability per mode.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from volplane.csi import v1

Mode = v1.VolumeCapability.AccessMode.Mode
_AccessMode = v1.VolumeCapability.AccessMode

RWO, ROX, RWX, RWOP = "ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"

_PLAIN: Mapping[str, Mode] = {
    RWO: _AccessMode.SINGLE_NODE_WRITER,
    ROX: _AccessMode.MULTI_NODE_READER_ONLY,
    RWX: _AccessMode.MULTI_NODE_MULTI_WRITER,
    RWOP: _AccessMode.SINGLE_NODE_WRITER,
}
# With SINGLE_NODE_MULTI_WRITER the driver distinguishes one node from one pod.
_PRECISE: Mapping[str, Mode] = {
    **_PLAIN,
    RWO: _AccessMode.SINGLE_NODE_MULTI_WRITER,
    RWOP: _AccessMode.SINGLE_NODE_SINGLE_WRITER,
}


class UnsupportedModes(ValueError):
    """A mode, or a set of modes, that has no CSI access mode."""


def access_mode(mode: str, *, multi_writer: bool = False) -> Mode:
    """One Kubernetes mode; `multi_writer`: the service has SINGLE_NODE_MULTI_WRITER."""
    try:
        return (_PRECISE if multi_writer else _PLAIN)[mode]
    except KeyError:
        raise UnsupportedModes(f"unsupported access mode {mode!r}") from None


def node_access_mode(modes: Sequence[str], *, multi_writer: bool = False) -> Mode:
    """The mode for stage and publish: the volume's first mode, ReadWriteOnce if it has none."""
    return access_mode(modes[0] if modes else RWO, multi_writer=multi_writer)


def attach_access_mode(modes: Iterable[str], *, multi_writer: bool = False) -> Mode:
    """One mode for all modes of a volume, as ControllerPublishVolume needs it."""
    wanted = set(modes)
    if RWOP in wanted and len(wanted) > 1:
        raise UnsupportedModes(f"{RWOP} cannot be combined with other access modes: {_spell(wanted)}")
    if {RWO, ROX} <= wanted and RWX not in wanted:
        raise UnsupportedModes(f"{RWO} and {ROX} on one volume cannot be expressed in CSI")
    for mode in (RWX, ROX, RWO, RWOP):
        if mode in wanted:
            return access_mode(mode, multi_writer=multi_writer)
    raise UnsupportedModes(f"unsupported access modes: {_spell(wanted)}")


def _spell(modes: Iterable[str]) -> str:
    return "[" + " ".join(sorted(modes)) + "]"


def capability(
    mode: Mode,
    *,
    block: bool = False,
    fs_type: str = "",
    mount_flags: Sequence[str] = (),
    group: str = "",
) -> v1.VolumeCapability:
    if block:
        return v1.VolumeCapability(
            access_mode=_AccessMode(mode=mode), block=v1.VolumeCapability.BlockVolume()
        )
    mount = v1.VolumeCapability.MountVolume(
        fs_type=fs_type, mount_flags=mount_flags, volume_mount_group=group
    )
    return v1.VolumeCapability(access_mode=_AccessMode(mode=mode), mount=mount)


def topology(segments: Mapping[str, str]) -> v1.Topology:
    return v1.Topology(segments=segments)
