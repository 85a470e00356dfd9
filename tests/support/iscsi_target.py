"""An `iscsiadm` that needs no iSCSI: a login makes loop devices, and the files that the kernel has in /sys.

    target = IscsiTarget(tmp_path, monkeypatch, {"iqn.2026-01.com.example:a": [0, 1]})
    target.answers["10.0.0.2:3260"] = "refuse"   # or "hang"; for discovery
    target.calls()                                # argv of every call

Devices appear in `by-path` a moment after the login, as with udev.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from volplane.volumes.iscsi.initiator import IscsiSettings

SIZE = 16 << 20
PROGRAM = """#!{python} -IS
import json, os, shutil, subprocess, sys, time
HOME = {home!r}
argv = sys.argv[1:]
with open(HOME + "/calls", "a") as log:
    log.write(json.dumps(argv) + "\\n")
with open(HOME + "/config") as file:
    config = json.load(file)


def value(flag):
    return argv[argv.index(flag) + 1] if flag in argv else ""


def put(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)


def end(code, text=""):
    sys.stderr.write("iscsiadm: " + text + "\\n")
    sys.exit(code)


def log_in(portal, iqn, record):
    if os.path.exists(record):
        end(15, "session exists")
    number = 1 + max([int(n[4:]) for n in os.listdir(HOME + "/sys/class/iscsi_host")], default=0)
    host = HOME + "/sys/class/iscsi_host/host%d" % number
    session = host + "/device/session%d" % number
    put(session + "/iscsi_session/session%d/targetname" % number, iqn + "\\n")
    address, _, port = portal.rpartition(":")
    for kind in ("", "persistent_"):
        values = session + "/connection%d:0/iscsi_connection/connection%d:0/" % (number, number)
        put(values + kind + "address", address.strip("[]") + "\\n")
        put(values + kind + "port", port + "\\n")
    put(HOME + "/sys/class/scsi_host/host%d/scan" % number, "")
    devices, links = [], []
    for lun, file in config["targets"][iqn].items():
        device = subprocess.check_output(["losetup", "-f", "--show", file], text=True).strip()
        found = os.stat(device).st_rdev
        block = session + "/target%d:0:0/%d:0:0:%s/block/%s" % (number, number, lun, os.path.basename(device))
        put(block + "/dev", "%d:%d\\n" % (os.major(found), os.minor(found)))
        put(block + "/device/delete", "")
        name = "ip-%s-iscsi-%s-lun-%s" % (portal.replace("[", "").replace("]", ""), iqn, lun)
        devices.append(device)
        links.append((device, HOME + "/by-path/" + name))
    put(record, json.dumps([devices, [link for _, link in links], host]))
    late = "sleep 0.2; mkdir -p %s/by-path;" % HOME + ";".join("ln -s %s '%s'" % pair for pair in links)
    subprocess.Popen(["sh", "-c", late], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def log_out(record):
    if not os.path.exists(record):
        end(21, "no records found")
    with open(record) as file:
        devices, links, host = json.load(file)
    for device in devices:
        subprocess.call(["losetup", "-d", device])
    for link in links:
        if os.path.lexists(link):
            os.unlink(link)
    shutil.rmtree(host)
    os.unlink(record)


portal, iqn = value("-p"), value("-T")
record = HOME + "/sessions/" + portal + "-" + iqn
if value("-n") == config["fail_update"]:
    end(6, "cannot set to " + value("-v"))
if value("-m") == "iface" and value("-o") == "show":
    print("# BEGIN RECORD 2.1.9\\niface.iscsi_ifacename = " + value("-I"))
    print("iface.net_ifacename = eth1\\niface.initiatorname = <empty>\\niface.transport_name = tcp")
elif "--discover" in argv:
    answer = config["answers"].get(portal, "")
    if answer == "hang":
        time.sleep(600)
    elif answer:
        end(4, "cannot make connection to " + portal)
elif "--login" in argv:
    log_in(portal, iqn, record)
elif "--logout" in argv:
    log_out(record)
"""


class IscsiTarget:
    """The targets, their LUNs, and the machine that logs in."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch, targets: dict[str, list[int]]) -> None:
        self.home = home / "iscsi"
        for name in ("bin", "sessions", "sys/class/iscsi_host", "sys/class/iscsi_transport/tcp"):
            (self.home / name).mkdir(parents=True)
        self._config: dict[str, Any] = {"answers": {}, "fail_update": None, "targets": {}}
        for iqn, luns in targets.items():
            self._config["targets"][iqn] = {str(lun): self._make_disk(iqn, lun) for lun in luns}
        self.configure()
        program = self.home / "bin" / "iscsiadm"
        program.write_text(PROGRAM.format(python=sys.executable, home=str(self.home)))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    def _make_disk(self, iqn: str, lun: int) -> str:
        path = self.home / f"{iqn}-{lun}.img"
        with path.open("wb") as file:
            file.truncate(SIZE)
        return str(path)

    def configure(self, *, answers: dict[str, str] | None = None, fail_update: str | None = None) -> None:
        """`answers`: of portals to discovery, "refuse" or "hang". `fail_update`: a key that cannot be set."""
        self._config |= {"answers": answers or {}, "fail_update": fail_update}
        (self.home / "config").write_text(json.dumps(self._config))

    def settings(self, *, call_timeout: float = 30.0) -> IscsiSettings:
        return IscsiSettings(
            sys=str(self.home / "sys"),
            modules=str(self.home / "modules"),
            by_path=str(self.home / "by-path"),
            call_timeout=call_timeout,
            device_timeout=10.0,
        )

    def calls(self) -> list[list[str]]:
        """All calls since the last time."""
        log = self.home / "calls"
        found = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        log.unlink(missing_ok=True)
        return found

    def sessions(self) -> list[str]:
        return sorted(os.listdir(self.home / "sessions"))

    def scans(self) -> list[str]:
        return [path.read_text() for path in sorted(self.home.glob("sys/class/scsi_host/*/scan"))]

    def deletions(self) -> list[str]:
        """The LUNs whose devices were deleted."""
        found = self.home.glob("sys/class/iscsi_host/*/device/*/target*/*/block/*/device/delete")
        return sorted(path.parents[3].name.split(":")[-1] for path in found if path.read_text())

    def close(self) -> None:
        for record in (self.home / "sessions").iterdir():
            for device in json.loads(record.read_text())[0]:
                subprocess.call(["losetup", "-d", device])
        shutil.rmtree(self.home)
