"""Measure the figures of the README's comparison, with the programs that are on this machine.

    sudo python -m tools.compare [--rounds 5]

Volplane: from the command until nodes are ready, from `kubectl apply` of a claim and a pod until the pod is
ready, memory and CPU time of its processes. csi-sanity, which has no cluster: the checks that it runs on a
driver, and those of `volplane test-driver`. Other tools need programs that this does not install.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tools import peers

ROOT = Path(__file__).parent.parent
EXAMPLE, POD = ROOT / "examples" / "01-claim-and-pod", "pod/my-app-pod"
VOLPLANE = str(Path(sys.executable).with_name("volplane"))
TICKS = os.sysconf("SC_CLK_TCK")


class Round(NamedTuple):
    """One cluster of one node."""

    ready: float  # seconds until it is ready
    pod: float  # seconds until a pod with a new volume is ready
    memory: float  # MB of its processes; what they share counts once
    cpu: float  # seconds of CPU time until then


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the figures of the README's comparison.")
    parser.add_argument("--rounds", type=int, default=5)
    rounds = [measure_cluster() for _ in range(parser.parse_args().rounds)]
    print("| Volplane, one node | median | lowest | highest |\n|---|---|---|---|")
    for name, unit, values in (
        ("until ready", "s", [each.ready for each in rounds]),
        ("until a pod with a new volume is ready", "s", [each.pod for each in rounds]),
        ("memory", "MB", [each.memory for each in rounds]),
        ("CPU time of all that", "s", [each.cpu for each in rounds]),
    ):
        shown = (f"{value:.2f} {unit}" for value in (statistics.median(values), min(values), max(values)))
        print(f"| {name} | {' | '.join(shown)} |")
    print("\n| checks of a driver | |\n|---|---|")
    for name, text in list_checks():
        print(f"| {name} | {text} |")


def measure_cluster() -> Round:
    directory = tempfile.mkdtemp(prefix="compare-", dir="/var/tmp")
    cluster = ["--data-dir", directory]
    try:
        began = time.monotonic()
        run(VOLPLANE, "up", *cluster, "--nodes=1", "--detach")
        ready = time.monotonic() - began
        kubectl = ["kubectl", "--kubeconfig", f"{directory}/kubeconfig"]
        began = time.monotonic()
        run(*kubectl, "apply", "-f", str(EXAMPLE))
        run(*kubectl, "wait", "--for=condition=Ready", "--timeout=120s", POD)
        pod = time.monotonic() - began
        status = json.loads(run(VOLPLANE, "status", *cluster, "-o", "json"))
        family = list(_family(status["supervisor"]))
        return Round(ready, pod, sum(map(_memory, family)), sum(map(_cpu, family)))
    finally:
        run(VOLPLANE, "delete", "--yes", *cluster)
        shutil.rmtree(directory, ignore_errors=True)


def list_checks() -> Iterator[tuple[str, str]]:
    cases = json.loads(run(VOLPLANE, "test-driver", "--list", "-o", "json"))
    yield "cases of volplane test-driver", str(len(cases))
    sanity, driver = (peers.CACHE / "bin" / name for name in ("csi-sanity", "hostpathplugin"))
    if not (sanity.exists() and driver.exists()):
        yield "specs of csi-sanity", "not measured: `make peers` builds it"
        return
    with tempfile.TemporaryDirectory(prefix="sanity-") as place:
        socket = f"{place}/csi.sock"
        command = [str(driver), f"--endpoint=unix://{socket}", "--nodeid=n", f"--statedir={place}/state"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                while not os.path.exists(socket) and process.poll() is None:
                    time.sleep(0.05)
                words = [f"--csi.endpoint={socket}", "--ginkgo.no-color"]
                words += [f"--csi.mountdir={place}/mount", f"--csi.stagingdir={place}/staging"]
                done = subprocess.run([str(sanity), *words], capture_output=True, text=True, check=False)
            finally:
                process.kill()
    found = re.search(r"Ran (\d+) of (\d+) Specs in ([\d.]+) seconds", done.stdout)
    assert found, done.stdout[-2000:]
    yield "specs of csi-sanity", f"{found[2]}, of which {found[1]} run for csi-driver-host-path"


def _family(pid: int) -> Iterator[int]:
    """A process and all its descendants."""
    yield pid
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield from _family(int(child))


def _memory(pid: int) -> float:
    found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    return int(found[1]) / 1000 if found else 0.0


def _cpu(pid: int) -> float:
    """Of the process and its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
