"""Random work on the disk service, to be killed at any moment: `python worker.py DIRECTORY SEED OPERATIONS`.

Every operation is written into a journal before and after it. At its start the program compares what the
service remembers, the files and the loop devices with the journal; what an operation that was cut off has
left is either of two things, everything else is one. It ends with 3 when something does not agree.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from typing import Any

from volplane import cloud
from volplane.cloud.create_volume import CloudVolumeRequest
from volplane.cloud.errors import Ec2ErrorResponse
from volplane.cloud.model import AttachmentState, SnapshotState, VolumeShape, VolumeState
from volplane.cloud.service import DiskService
from volplane.host import Host, copies, devices
from volplane.store.sqlite import SqliteStore

WORKERS, ZONE, GIB, PLACE = 6, "us-east-1a", 1 << 30, 64 << 10
CHOICES = ("create", "delete", "attach", "attach", "detach", "write", "grow", "snapshot")
MOST = 12  # volumes of a worker

Facts = dict[str, Any]


class Journal:
    """What is known for sure, and per worker the one operation that may or may not have happened."""

    def __init__(self, path: str) -> None:
        self.volumes: dict[str, Facts] = {}  # token → size, where, stamp
        self.snapshots: dict[str, Facts] = {}  # name → size, stamp
        self.open: dict[int, Facts] = {}
        self.done = 0
        if os.path.exists(path):
            with open(path) as file:
                for line in file:
                    self.read(json.loads(line))
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def read(self, entry: Facts) -> None:
        if "end" in entry:
            if entry["end"]:
                self.apply(self.open[entry["worker"]])
            del self.open[entry["worker"]]
            self.done += 1
        else:
            self.open[entry["worker"]] = entry

    def apply(self, entry: Facts) -> None:
        token = entry.get("volume", "")
        match entry["op"]:
            case "create":
                self.volumes[token] = {"size": entry["size"], "where": "", "stamp": entry["stamp"]}
            case "delete":
                del self.volumes[token]
            case "attach":
                self.volumes[token]["where"] = entry["device"]
            case "detach":
                self.volumes[token]["where"] = ""
            case "grow":
                self.volumes[token]["size"] = entry["size"]
            case "write":
                self.volumes[token]["stamp"] = entry["stamp"]
            case "snapshot":
                volume = self.volumes[token]
                self.snapshots[entry["name"]] = {"size": volume["size"], "stamp": volume["stamp"]}
            case "forget":
                del self.snapshots[entry["name"]]

    def write(self, entry: Facts) -> None:
        os.write(self._file, json.dumps(entry).encode() + b"\n")
        self.read(entry)


def stamp_on(path: str) -> str:
    """The stamp in a file or on a device, after a look at every other place that could hold data."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        text = os.pread(descriptor, 4096, PLACE).rstrip(b"\0").decode()
        if not path.startswith("/dev/"):
            for start, end in copies.extents(descriptor):
                data = os.pread(descriptor, end - start, start)
                if start <= PLACE:
                    data = data[: PLACE - start] + data[PLACE - start + 4096 :]
                assert not data.strip(b"\0"), f"{path}: data at {start} that was not written"
        return text
    finally:
        os.close(descriptor)


def put_stamp(device: str, stamp: str) -> None:
    descriptor = os.open(device, os.O_RDWR | os.O_SYNC)
    os.pwrite(descriptor, stamp.encode().ljust(4096, b"\0"), PLACE)
    os.close(descriptor)


class Checker:
    def __init__(self, service: DiskService, journal: Journal, directory: str) -> None:
        self.service, self.journal, self.directory = service, journal, directory
        self.loops = {file: device for device, file in devices.loops().items() if file.startswith(directory)}

    def check(self) -> None:
        records = self.service.records
        self.unsure = {e.get("volume", ""): e for e in self.journal.open.values()}
        unsure_names = {e.get("name", ""): e for e in self.journal.open.values()}
        for token in {*self.journal.volumes, *records.tokens}:
            self.check_volume(token)
        names = {s.tags["name"]: s for s in records.snapshots.values()}
        for name in {*self.journal.snapshots, *names}:
            known, found = self.journal.snapshots.get(name), names.get(name)
            if name in unsure_names and (known is None or found is None):
                op = unsure_names[name]["op"]
                if (found and op == "snapshot") or (known and op == "forget"):
                    self.settle(unsure_names[name], happened=True)
                known = self.journal.snapshots.get(name)
            assert (known is None) == (found is None), f"snapshot {name}: {known} but {found}"
            if known and found:
                assert found.state is SnapshotState.COMPLETED
                assert found.size == known["size"]
                text = stamp_on(f"{self.directory}/snapshots/{found.id}.img")
                assert text == known["stamp"], f"snapshot {name}: {text} is not {known['stamp']}"
        files = {f"{v}.img" for v in records.volumes}
        assert set(os.listdir(f"{self.directory}/disks")) == files
        kept = {f"{s}.img" for s in records.snapshots}
        assert set(os.listdir(f"{self.directory}/snapshots")) == kept
        for entry in tuple(self.journal.open.values()):
            self.settle(entry, happened=False)

    def settle(self, entry: Facts, *, happened: bool) -> None:
        self.journal.write({"worker": entry["worker"], "end": happened})

    def check_volume(self, token: str) -> None:
        records, journal = self.service.records, self.journal
        volume = records.volumes.get(records.tokens.get(token, ""))
        known, unsure = journal.volumes.get(token), self.unsure.get(token)
        if unsure and unsure["op"] not in ("snapshot", "forget") and self.has_happened(unsure, volume, known):
            self.settle(unsure, happened=True)
            known = journal.volumes.get(token)
        assert (known is None) == (volume is None), f"{token}: {known} but {volume}"
        if known is None or volume is None:
            return
        file = f"{self.directory}/disks/{volume.id}.img"
        assert (volume.shape.size, os.path.getsize(file)) == (known["size"], known["size"] * GIB)
        held = next(iter(volume.attachments), None)
        assert (held.device if held else "") == known["where"], f"{token}: {volume} but {known}"
        assert volume.state is (VolumeState.IN_USE if held else VolumeState.AVAILABLE)
        assert (file in self.loops) == bool(held), f"{token}: bound {file in self.loops}, {volume}"
        if held:
            assert held.state is AttachmentState.ATTACHED
            link = f"{self.directory}/{held.instance}/{os.path.basename(held.device)}"
            assert os.path.realpath(link) == self.loops[file]
            assert stamp_on(self.loops[file]) == known["stamp"]
        assert stamp_on(file) == known["stamp"], f"{token}: {stamp_on(file)} is not {known['stamp']}"

    def has_happened(self, unsure: Facts, volume: Any, known: Facts | None) -> bool:
        match unsure["op"]:
            case "create":
                return known is None and volume is not None
            case "delete":
                return volume is None
            case "attach" | "detach":
                return bool(bool(volume.attachments) == (unsure["op"] == "attach"))
            case "grow":
                return bool(volume.shape.size == unsure["size"])
            case "write":
                return bool(stamp_on(f"{self.directory}/disks/{volume.id}.img") == unsure["stamp"])
        return False


class Worker:
    def __init__(
        self, number: int, service: DiskService, journal: Journal, directory: str, seed: int
    ) -> None:
        self.number, self.service, self.journal, self.directory = number, service, journal, directory
        self.random = random.Random(f"{seed} {number}")
        self.count = 0
        self.seed = seed

    async def run(self, until: int) -> None:
        while self.journal.done < until:
            await self.step()

    async def step(self) -> None:
        mine = [t for t in self.journal.volumes if t.startswith(f"{self.number}-")]
        names = [n for n in self.journal.snapshots if n.startswith(f"{self.number}-")]
        self.count += 1
        fresh = f"{self.number}-{self.seed}-{self.count}"
        token = self.random.choice(mine) if mine else ""
        facts = self.journal.volumes.get(token, {})
        op = self.random.choice(CHOICES)
        if op == "snapshot" and len(names) > 2:
            op = "forget"
        if not token or (op == "create" and len(mine) < MOST):
            await self.create(fresh, self.random.choice([*names, "", ""]))
        elif op == "delete" and not facts["where"] and len(mine) > 3:
            await self.do({"op": op, "volume": token}, self.service.delete(self.id(token)))
        elif op == "attach" and not facts["where"]:
            device = f"/dev/xvdb{chr(97 + self.random.randrange(26))}"
            if device not in [self.journal.volumes[t]["where"] for t in mine]:
                call = self.service.attach(self.id(token), f"i-{self.number}", device)
                await self.do({"op": op, "volume": token, "device": device}, call)
        elif op == "detach" and facts["where"]:
            await self.do({"op": op, "volume": token}, self.service.detach(self.id(token)))
        elif op == "write" and facts["where"]:
            link = f"{self.directory}/i-{self.number}/{os.path.basename(facts['where'])}"
            write = asyncio.to_thread(put_stamp, link, fresh)
            await self.do({"op": op, "volume": token, "stamp": fresh}, write)
        elif op == "grow" and facts["size"] < 5:
            size = facts["size"] + 1
            await self.do(
                {"op": op, "volume": token, "size": size}, self.service.modify(self.id(token), {"size": size})
            )
        elif op == "snapshot":
            creation = self.service.snapshots.create(self.id(token), tags={"name": fresh})
            await self.do({"op": op, "volume": token, "name": fresh}, creation)
        elif op == "forget":
            name = self.random.choice(names)
            (snapshot,) = (s for s in self.service.snapshots.all() if s.tags["name"] == name)
            await self.do({"op": op, "name": name}, self.service.snapshots.delete(snapshot.id))
        else:
            # What must be refused is refused, and changes nothing.
            call = self.service.attach(self.id(token), f"i-{self.number}", facts["where"] or "nonsense")
            await self.do({"op": "refused", "volume": token}, call)

    async def create(self, token: str, name: str) -> None:
        facts = self.journal.snapshots.get(name)
        source = next((s.id for s in self.service.snapshots.all() if s.tags["name"] == name), "")
        size = facts["size"] if facts else 1
        request = CloudVolumeRequest(zone=ZONE, shape=VolumeShape(size, "gp3"), token=token, snapshot=source)
        stamp = facts["stamp"] if facts else ""
        entry = {"op": "create", "volume": token, "size": size, "stamp": stamp}
        await self.do(entry, self.service.create(request))

    def id(self, token: str) -> str:
        return self.service.records.tokens[token]

    async def do(self, entry: Facts, call: Any) -> None:
        entry["worker"] = self.number
        self.journal.write(entry)
        try:
            await call
            done = True
        except Ec2ErrorResponse as error:
            if entry["op"] != "refused":
                raise AssertionError(f"{entry}: {error}") from error
            done = False
        self.journal.write({"worker": self.number, "end": done})


async def main(directory: str, seed: int, until: int) -> int:
    store = await SqliteStore.open(f"{directory}/state.db")
    nodes = tuple(cloud.CloudInstance(f"i-{n}", ZONE, f"{directory}/i-{n}") for n in range(WORKERS))
    settings = cloud.CloudOptions(data_dir=directory, access_key="a", secret_key="b", instances=nodes)
    host = Host()
    async with cloud.open_service(settings, host, store) as service:
        journal = Journal(f"{directory}/journal")
        Checker(service, journal, directory).check()
        print("agreed", flush=True)
        async with asyncio.TaskGroup() as group:
            for number in range(WORKERS):
                group.create_task(Worker(number, service, journal, directory, seed).run(until))
        Checker(service, journal, directory).check()
    await store.close()
    await host.close()
    print(f"done {journal.done}", flush=True)
    return 0


if __name__ == "__main__":
    try:
        raise SystemExit(asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
    except* AssertionError as group:
        print(group, [str(e) for e in group.exceptions], file=sys.stderr)
        raise SystemExit(3) from None
