"""The root of containers without root, where directories of the machine have mounts below them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.root

# A machine in a mount namespace of its own. In the user namespace that follows its mounts stay together.
MACHINE = """
mount -t tmpfs machine /var
mkdir -p /var/disk /var/lib/app /var/log
mount -t tmpfs disk /var/disk
echo old > /var/log/old
echo kept > /var/log/kept
mkdir /var/log/ended
cp -a /etc "$1/etc"
mount --bind "$1/etc" /etc
mount --bind "$1/passwd" /etc/passwd
mkdir -p /etc/ssh /etc/keys /var/lib/kubelet
for file in /etc/shadow /etc/ssh/host_key /etc/keys/keytab /var/lib/kubelet/config; do
  echo secret > "$file"
done
rm -rf /etc/gshadow- /etc/sudoers.d
ln -sf keys/keytab /etc/krb5.keytab
mount -t tmpfs srv /srv
mkdir -p /srv/directory/program
for file in /srv/file /srv/target /srv/directory/file /srv/directory/program/file; do
  echo secret > "$file"
done
ln -s target /srv/link
mount -t tmpfs docs /usr/share
exec unshare --user --map-root-user --mount "$2" -c "$3" "$1/shell"
"""

# Prints what a container sees, or the error.
CONTAINER = """
import contextlib, json, os, sys
from volplane.node.containers.launcher import kernel, user_namespace_root

scandir = os.scandir

def rotate_meanwhile(path):
    entries = list(scandir(path))
    if path.endswith("/var/log"):
        os.unlink(f"{path}/old")
        os.rmdir(f"{path}/ended")
    return entries

def find_secrets(directory):
    found = []
    for place, _, names in os.walk(directory):
        for path in (f"{place}/{name}" for name in names):
            with contextlib.suppress(OSError), open(path, "rb") as file:
                found += [path] * (file.read() == b"secret\\n")
    return found

hidden = ["/srv/file", "/srv/directory", "/srv/link", "/srv/later"]
layout = user_namespace_root.prepare_user_namespace_layout(hidden, ["/srv/directory/program"], sys.argv[1])
for path in ("/etc/gshadow-", "/srv/later"):
    with open(path, "w") as file:
        file.write("secret\\n")
os.makedirs("/etc/sudoers.d/later")
with open("/etc/sudoers.d/later/file", "w") as file:
    file.write("secret\\n")
kernel.unshare(kernel.CLONE_NEWPID)
if (child := os.fork()) == 0:
    kernel.setns(layout.namespace, kernel.CLONE_NEWNS)
    kernel.unshare(kernel.CLONE_NEWNS)
    targets = ["/var/lib/app/data", "/var/log/app/data"]
    os.scandir = rotate_meanwhile
    layout.build(privileged=False, secrets=False, masked=False, targets=[*targets, "/etc/hosts"])
    os.scandir = scandir
    for target in targets:
        os.makedirs(target)
    print(json.dumps({
        "solid": sorted(layout._solid),
        "app": os.listdir("/var/lib/app"),
        "kept": open("/var/log/kept").read(),
        "passwd": open("/etc/passwd").read(),
        "shell": open("/bin/sh").read(),
        "executable": os.access("/bin/sh", os.X_OK),
        "secrets": [*find_secrets("/etc"), *find_secrets("/srv"), *find_secrets("/var/lib")],
        "shadow": open("/etc/shadow").read(),
        "passed through": os.stat("/etc/ssh").st_mode & 0o111,
    }), flush=True)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Any:
    probe = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "true"], check=False)
    if probe.returncode:
        pytest.skip("the kernel gives no user namespace here")
    place = tmp_path_factory.mktemp("machine")
    (place / "passwd").write_text("root:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\n")
    (place / "shell").write_text("another shell")
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-euc", MACHINE, "sh",
         str(place), sys.executable, CONTAINER],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    usr = str(Path("/bin").resolve().parent)  # "/" where /bin is a directory of its own
    assert {"/etc", "/var", *({"/usr"} if usr == "/usr" else ())} <= set(found["solid"])
    return found


def test_a_volume_is_mounted_in_an_empty_directory(seen: Any) -> None:
    assert seen["app"] == ["data"]


def test_secrets_are_hidden_also_in_directories_with_mounts_and_behind_links(seen: Any) -> None:
    assert seen["secrets"] == ["/srv/directory/program/file"]  # a program that containers shall see
    assert seen["shadow"] == ""
    assert seen["passed through"] == 0o111


def test_what_the_machine_removes_meanwhile_does_not_matter(seen: Any) -> None:
    assert seen["kept"] == "kept\n"


def test_accounts_and_shell_are_covered_in_directories_with_mounts(seen: Any) -> None:
    assert seen["passwd"] == "root:x:0:0::/root:/bin/sh\n"
    assert seen["shell"] == "another shell"
    assert seen["executable"]
