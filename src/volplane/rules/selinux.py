"""SELinux: the label with which a volume is mounted, so that nobody has to relabel its files one by one.

A label is told apart from the pod alone: what its containers ask for, completed by what the machine's policy
gives to containers' files. The subtle thing is the level. A container that names none gets one by chance when
it is started; no volume can be mounted for it beforehand, so it has no label here.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from volplane.api.core import PersistentVolume, Pod, SELinuxOptions
from volplane.rules import access, pods

RECURSIVE = "Recursive"  # a pod whose files are relabelled one by one after all
EVERY_MODE = "SELinuxMount"  # upstream's gate: not volumes of one pod alone


class SELinuxPolicy(Struct, frozen=True):
    """What a machine with SELinux gives to containers, as user:role:type:level."""

    process: str = ""
    file: str = ""


class SELinuxLabelConflict(ValueError):
    """Containers of one pod want one volume with different labels."""


def is_mountable(volume: PersistentVolume | None, *, every_mode: bool) -> bool:
    """Whether a volume's access modes allow one label for all of it."""
    if volume is None:
        return False
    return every_mode or volume.spec.access_modes == (access.ONCE_POD,)


def label(pod: Pod, volume: str, policy: SELinuxPolicy) -> str:
    """Of the pod's volume of that name; "" if it is not known. Raises Conflict."""
    labels = {file_label(options, policy): None for options in _container_options(pod, volume)}
    if len(labels) > 1:
        raise SELinuxLabelConflict(f"multiple SELinux labels found: {','.join(labels)}")
    return next(iter(labels), "")


def is_mount_declined(pod: Pod) -> bool:
    context = pod.spec.security_context
    return context is not None and context.se_linux_change_policy == RECURSIVE


def file_label(options: SELinuxOptions, policy: SELinuxPolicy) -> str:
    """What files of a container with these options have; only user and level are the container's own."""
    if not options.level or not policy.process or policy.file.count(":") < 2:
        return ""
    user, role, kind = policy.file.split(":", 3)[:3]
    return f"{options.user or user}:{role}:{kind}:{options.level}"


def _container_options(pod: Pod, volume: str) -> Iterator[SELinuxOptions]:
    context = pod.spec.security_context
    everyone = context.se_linux_options if context is not None else None
    for container in pods.containers(pod):
        if any(mount.name == volume for mount in container.volume_mounts):
            own = container.security_context
            chosen = own.se_linux_options if own is not None and own.se_linux_options else everyone
            if chosen is not None:
                yield chosen
