"""Give files away. In a user namespace some users and groups do not exist; the kernel only says EINVAL."""

from __future__ import annotations

import errno
import os

from volplane.base.user_namespace import is_user_namespace


def change_owner(
    path: str | int, user: int, group: int, *, dir_fd: int | None = None, follow_symlinks: bool = True
) -> None:
    """os.chown, with an error that says what to do. -1: keep."""
    try:
        os.chown(path, user, group, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
    except OSError as error:
        if error.errno != errno.EINVAL or not is_user_namespace():
            raise
        names = [f"{kind} {number}" for kind, number in (("user", user), ("group", group)) if number >= 0]
        text = (
            f"this cluster runs without root, and its user namespace has no {' and '.join(names)}: give your"
            " user ranges in /etc/subuid and /etc/subgid, and install newuidmap (package uidmap)"
        )
        raise OSError(errno.EINVAL, text) from error
