"""Upstream's csi-sanity on the same driver, where it is on PATH: its specs are cases like our own."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from volplane.testing.runner import CaseResult, CaseVerdict
from volplane.testing.socket_env import SocketEnv

CASE = "sanity/csi-sanity"
PROGRAM = "csi-sanity"
LIMIT = 600.0  # seconds
SECRETS = (
    "CreateVolume",
    "DeleteVolume",
    "ControllerPublishVolume",
    "ControllerUnpublishVolume",
    "ControllerValidateVolumeCapabilities",
    "NodeStageVolume",
    "NodePublishVolume",
    "CreateSnapshot",
    "DeleteSnapshot",
    "ControllerExpandVolume",
    "ListSnapshots",
)
VERDICTS = {"passed": CaseVerdict.PASSED, "skipped": CaseVerdict.SKIPPED}


def find_program() -> str | None:
    return shutil.which(PROGRAM)


async def run(bench: SocketEnv, directory: Path) -> list[CaseResult]:
    """A result for each of its specs; one that is skipped if it is not there."""
    program = find_program()
    if program is None or not bench.capabilities.has("create"):
        why = "is not on PATH" if program is None else "needs a driver that makes volumes"
        return [_full_text(CaseVerdict.SKIPPED, f"{PROGRAM} {why}")]
    await bench.host.call(directory.mkdir, exist_ok=True)
    report = directory / "report.json"
    argv = [
        program,
        f"--csi.endpoint=unix://{bench.nodes[0].instance.socket}",
        f"--csi.controllerendpoint=unix://{bench.controller.instance.socket}",
        f"--csi.mountdir={directory}/mount",
        f"--csi.stagingdir={directory}/staging",
        f"--csi.testvolumesize={bench.size}",
        f"--csi.testvolumeexpandsize={2 * bench.size}",
        "--ginkgo.no-color",
        f"--ginkgo.json-report={report}",
    ]
    if bench.parameters:
        file = directory / "parameters.yaml"
        file.write_text(json.dumps(bench.parameters))
        argv.append(f"--csi.testvolumeparameters={file}")
    if bench.secrets:
        file = directory / "secrets.yaml"
        file.write_text(json.dumps({f"{kind}Secret": bench.secrets for kind in SECRETS}))
        argv.append(f"--csi.secrets={file}")
    try:
        done = await bench.host.run(argv, timeout=LIMIT, check=False, env=dict(os.environ))
    except TimeoutError:
        await bench.recover()
        return [_full_text(CaseVerdict.FAILED, f"not at its end after {LIMIT:g} s")]
    if not report.exists():
        return [_full_text(CaseVerdict.FAILED, f"no report: {done.output[-2000:]}")]
    suites = json.loads(report.read_text())
    specs = [spec for suite in suites for spec in suite.get("SpecReports") or ()]
    return [made for spec in specs if (made := _result(spec)) is not None]


def _full_text(verdict: CaseVerdict, reason: str) -> CaseResult:
    return CaseResult(CASE, PROGRAM, "Upstream's own tests.", verdict, reason)


def _result(spec: dict[str, Any]) -> CaseResult | None:
    if spec.get("LeafNodeType") != "It" or spec["State"] == "pending":
        return None
    path = [*(spec.get("ContainerHierarchyTexts") or ()), spec["LeafNodeText"]]
    verdict = VERDICTS.get(spec["State"], CaseVerdict.FAILED)
    reason = (spec.get("Failure") or {}).get("Message", "")
    return CaseResult(
        f"sanity/{' '.join(path[1:])}",
        f"csi-sanity: {path[0]}",
        "Upstream's own test of this name.",
        verdict,
        f"csi-sanity: {reason}" if reason else "",
        spec.get("RunTime", 0) / 1e9,
    )
