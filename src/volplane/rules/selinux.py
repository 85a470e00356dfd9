"""SELinux: the label with which a volume is mounted, so that its files need no relabelling.

The label follows from the pod: the options of its containers, completed by the file context of the machine's
policy. A container that names no level gets a random one when it starts; a volume cannot be mounted for that
beforehand, so it has no label here.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from volplane.api.core import PersistentVolume, Pod, SELinuxOptions
from volplane.rules import access, pods

RECURSIVE = "Recursive"  # value of seLinuxChangePolicy: relabel file by file
EVERY_MODE = "SELinuxMount"  # upstream's feature gate: not only ReadWriteOncePod volumes


class SELinuxPolicy(Struct, frozen=True):
    """The default contexts of a machine with SELinux, as user:role:type:level."""

    process: str = ""
    file: str = ""


class SELinuxLabelConflict(ValueError):
    """Containers of one pod need one volume with different labels."""


def is_mountable(volume: PersistentVolume | None, *, every_mode: bool) -> bool:
    """Whether the access modes of the volume allow mounting it with one label."""
    if volume is None:
        return False
    return every_mode or volume.spec.access_modes == (access.ONCE_POD,)


def label(pod: Pod, volume: str, policy: SELinuxPolicy) -> str:
    """The label of a volume of the pod; "" if it is not known. Raises SELinuxLabelConflict."""
    labels = {file_label(options, policy): None for options in _container_options(pod, volume)}
    if len(labels) > 1:
        raise SELinuxLabelConflict(f"multiple SELinux labels found: {','.join(labels)}")
    return next(iter(labels), "")


def is_mount_declined(pod: Pod) -> bool:
    context = pod.spec.security_context
    return context is not None and context.se_linux_change_policy == RECURSIVE


def file_label(options: SELinuxOptions, policy: SELinuxPolicy) -> str:
    """The file label of a container with these options; only user and level are taken from the container."""
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
