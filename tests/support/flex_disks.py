"""A FlexVolume driver with real disks: sparse files behind loop devices, and a record of attachments.

It refuses what a storage system refuses: a disk that is attached to another node, or detached while mounted.
Every command that can be left to the kubelet is left to it unless `complete` is set.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

DRIVER = "example.com/disks"

_SCRIPT = r"""#!/bin/sh
S=STATE
printf '%s\t' "$@" >> $S/calls; echo >> $S/calls
case "$*" in *"$(cat $S/hang 2> /dev/null || echo "no volume hangs")"*)
  [ ! -p $S/$1.hang ] || cat $S/$1.hang > /dev/null 2>&1 ;;
esac
exec 9> $S/lock; flock 9
done_with() { echo "{\"status\": \"Success\"${1:+, $1}}"; exit 0; }
fail() { echo "{\"status\": \"Failure\", \"message\": \"$1\"}"; exit 1; }
option() { printf '%s' "$1" | sed -n "s#.*\"$2\":\"\([^\"]*\)\".*#\1#p"; }
name() { option "$1" kubernetes.io/pvOrVolumeName; }
device() { losetup -n -O NAME -j $S/$1.img 2>> $S/log | head -n 1; }
run() { "$@" >> $S/log 2>&1; }
case "$1" in
  init) done_with '"capabilities": {"attach": true}' ;;
  getvolumename) done_with ;;
  attach)
    v=$(name "$2"); on=$(cat $S/$v.node 2>> $S/log)
    [ -z "$on" ] || [ "$on" = "$3" ] || fail "$v is attached to $on"
    [ -f $S/$v.img ] || run truncate -s "$(option "$2" size)" $S/$v.img
    [ -n "$(device $v)" ] || run losetup -f $S/$v.img || fail "no loop device"
    echo "$3" > $S/$v.node
    done_with "\"device\": \"$(device $v)\"" ;;
  detach)
    [ "$(cat $S/$2.node 2>> $S/log)" = "$3" ] || done_with
    d=$(device $2)
    ! grep -q "^$d " /proc/mounts || fail "$d is mounted"
    [ -z "$d" ] || run losetup -d $d || fail "cannot release $d"
    rm $S/$2.node; done_with ;;
  isattached)
    [ "$(cat $S/$(name "$2").node 2>> $S/log)" = "$3" ] && done_with '"attached": true'
    done_with '"attached": false' ;;
  waitforattach) [ -b "$2" ] || fail "$2 is no block device"; done_with "\"device\": \"$2\"" ;;
  expandvolume)
    v=$(name "$2"); run truncate -s $4 $S/$v.img; d=$(device $v)
    [ -z "$d" ] || run losetup -c $d; done_with ;;
esac
[ -f $S/complete ] || { echo '{"status": "Not supported"}'; exit 1; }
case "$1" in
  mountdevice)
    blkid $3 >> $S/log 2>&1 || run mkfs -t "$(option "$4" kubernetes.io/fsType)" $3 || fail "cannot format $3"
    run mount $3 $2 || fail "cannot mount $3" ;;
  mount)
    d=$(device $(name "$3")); from=$(findmnt -n -o TARGET -S $d | grep /mounts/ | head -n 1)
    run mount --bind "$from" $2 || fail "cannot bind $from" ;;
  unmount | unmountdevice) ! mountpoint -q $2 || run umount $2 || fail "cannot unmount $2" ;;
  expandfs) run xfs_growfs $4 || fail "cannot resize $3" ;;
  *) fail "no command $1" ;;
esac
done_with
"""


class FlexDisks:
    def __init__(self, directory: Path) -> None:
        self.plugins = directory / "exec"
        self.state = directory / "disks"
        self.state.mkdir(parents=True)
        self.executable = self.plugins / DRIVER.replace("/", "~") / "disks"

    def install(self, *, complete: bool = False) -> None:
        """By a rename, also over an older version. `complete`: the driver mounts and resizes by itself."""
        (self.state / "complete").touch() if complete else (self.state / "complete").unlink(missing_ok=True)
        self.executable.parent.mkdir(parents=True, exist_ok=True)
        aside = self.executable.with_name(".new")
        aside.write_text(_SCRIPT.replace("STATE", str(self.state)))
        aside.chmod(0o755)
        aside.rename(self.executable)

    def remove(self) -> None:
        self.executable.unlink()

    def hang(self, command: str, volume: str) -> None:
        """Calls of the command for the volume do not end before `release`."""
        (self.state / "hang").write_text(volume)
        os.mkfifo(self.state / f"{command}.hang")

    def release(self, command: str) -> None:
        """Let the calls that hang go on, and later ones not hang."""
        fifo = self.state / f"{command}.hang"
        aside = fifo.rename(fifo.with_suffix(".released"))  # one that has not opened it yet does not find it
        os.close(os.open(aside, os.O_RDWR | os.O_NONBLOCK))
        aside.unlink()

    @property
    def calls(self) -> list[list[str]]:
        lines = (self.state / "calls").read_text().splitlines()
        return [line.rstrip("\t").split("\t") for line in lines]

    def commands(self, *of: str) -> list[str]:
        return [call[0] for call in self.calls if call[0] in of]

    def forget_calls(self) -> None:
        (self.state / "calls").write_text("")

    def attached(self) -> dict[str, str]:
        """Volume → node, by the driver's own record."""
        return {file.stem: file.read_text().strip() for file in self.state.glob("*.node")}

    def loops(self) -> list[str]:
        done = subprocess.run(["losetup", "-a"], capture_output=True, text=True, check=True)
        return [line for line in done.stdout.splitlines() if str(self.state) in line]

    def clean(self) -> None:
        """After a failed test: release what it has left."""
        for line in self.loops():
            device = line.partition(":")[0]
            subprocess.run(["umount", "--all-targets", "-q", device], check=False)
            subprocess.run(["losetup", "-d", device], check=False)
