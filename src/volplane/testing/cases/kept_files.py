"""A volume that comes back is the same: all files, their attributes, and those of its root directory.

Staging and publishing change nothing in a volume: an application's files and permissions are its own.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from volplane.testing.case import CaseTable, require
from volplane.testing.cases.file_attributes import (
    GROUP,
    OWNER,
    FileAttributes,
    describe_differences,
    read_attributes,
    read_tree,
    write_tree,
)
from volplane.testing.socket_env import SocketEnv

case = CaseTable()

ROOT = "."
HIDDEN = ".hidden"  # a file in the root
ROOT_MODE = 0o2750


@case(
    "stage/keeps all files",
    "NodeStageVolume",
    "A volume that is unstaged and staged again has the same files, also hidden ones, and its root has the"
    " same owner and mode.",
    "provision",
)
async def keeps_all_files(env: SocketEnv) -> None:
    volume, node = await env.create_and_publish(), env.nodes[0]
    await env.host.call(_write_all, volume.target(node))
    before = await env.host.call(_read_all, volume.target(node))
    await volume.unpublish_unstage_detach(node)
    await volume.attach_stage_publish(node)
    after = await env.host.call(_read_all, volume.target(node))
    wrong = describe_differences(before, after)
    require(not wrong, f"after unstage and stage: {wrong}")


def _write_all(root: str) -> None:
    write_tree(root)
    Path(root, HIDDEN).write_text("hidden")
    with suppress(OSError):
        os.chown(root, OWNER, GROUP)
    with suppress(OSError):
        os.chmod(root, ROOT_MODE)


def _read_all(root: str) -> dict[str, FileAttributes]:
    own = {name: read_attributes(os.path.join(root, name)) for name in (ROOT, *sorted(os.listdir(root)))}
    return read_tree(root) | own
