"""What containers see instead of files of this machine: accounts, and the shell if another one is chosen."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from volplane.host import Host
from volplane.node.containers.launcher.accounts import GROUP, PASSWD, make_account_files
from volplane.node.containers.launcher.rootfs import read_cover_files
from volplane.node.containers.process import ProcessRuntime

USERS = b"""root:x:0:0:root:/root:/bin/bash
postgres:x:110:115:PostgreSQL:/var/lib/postgresql:/bin/bash
alice:x:1000:1000:Alice:/home/alice:/bin/bash
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
+::::::
broken:x:7
large:x:99999999999999999999:1::/:/bin/sh
"""
GROUPS = b"""root:x:0:
sudo:x:27:alice,postgres,nobody
alice:x:1000:
team:x:2000:alice,bob
nogroup:x:65534:
"""


def test_only_accounts_of_the_system_are_kept() -> None:
    assert make_account_files(USERS, GROUPS) == {
        PASSWD: b"root:x:0:0:root:/root:/bin/bash\n"
        b"postgres:x:110:115:PostgreSQL:/var/lib/postgresql:/bin/bash\n"
        b"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
        GROUP: b"root:x:0:\nsudo:x:27:postgres,nobody\nnogroup:x:65534:\n",
    }
    assert make_account_files(b"", b"") == {PASSWD: b"", GROUP: b""}


def test_a_shell_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_cover_files(str(tmp_path / "gone"))


SEPARATE = """
import asyncio, sys
from volplane.host import Host
from volplane.node.containers.base import ContainerSpec
from volplane.node.containers.process import ProcessRuntime

async def main(place):
    host, log = Host(threads=2), f"{place}/log"
    runtime = ProcessRuntime(f"{place}/containers", host)
    script = "touch /tmp/file; chgrp 2000 /tmp/file; ls -l /tmp/file; id; echo $HOME"
    spec = ContainerSpec(id="one", command=("sh", "-c", script), log_path=log, user=1000, groups=(2000,))
    await runtime.start(spec)
    await runtime.wait("one")
    await runtime.remove("one")
    await runtime.close()
    await host.close()
    print("".join(line.split(" ", 3)[3] for line in open(log)))

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.root
def test_a_container_does_not_see_the_names_of_people_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "passwd").write_bytes(USERS)
    (tmp_path / "group").write_bytes(GROUPS)
    cover = " && ".join(f'mount --bind "$1/{name}" /etc/{name}' for name in ("passwd", "group"))
    fake = f'{cover} && exec "$0" -c "$2" "$1"'
    argv = [
        "unshare",
        "--mount",
        "--propagation",
        "slave",
        "sh",
        "-c",
        fake,
        sys.executable,
        str(tmp_path),
        SEPARATE,
    ]
    shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    assert shown[0].split()[2:4] == ["1000", "2000"]
    assert shown[1:3] == ["uid=1000 gid=0(root) groups=0(root),2000", "/"]


@pytest.mark.root
async def test_another_program_can_be_the_shell_of_containers(room: Any) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    host = Host(threads=2)
    runtime = ProcessRuntime(str(room.containers), host, shell=bash)
    try:
        await runtime.start(room.spec("/bin/sh", "-c", "echo $BASH; exec sleep 1000"))
        assert await room.wait_for_output("/") in ("/bin/sh", "/usr/bin/sh")
        code, output = await room.run_in(runtime, "one", "sh", "-c", 'test -n "$BASH_VERSION" && echo bash')
        assert (code, output) == (0, "bash\n")
        await runtime.remove("one")
    finally:
        await runtime.close()
        await host.close()
