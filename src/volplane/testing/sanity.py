"""Run upstream's csi-sanity, if it is on PATH, and report its specs as cases."""

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


async def run(env: SocketEnv, directory: Path) -> list[CaseResult]:
    """A result for each spec; one skipped result if csi-sanity is missing."""
    program = find_program()
    if program is None or not env.capabilities.has("create"):
        why = "is not on PATH" if program is None else "needs a driver that creates volumes"
        return [_full_text(CaseVerdict.SKIPPED, f"{PROGRAM} {why}")]
    await env.host.call(directory.mkdir, exist_ok=True)
    report = directory / "report.json"
    argv = [
        program,
        f"--csi.endpoint=unix://{env.nodes[0].instance.socket}",
        f"--csi.controllerendpoint=unix://{env.controller.instance.socket}",
        f"--csi.mountdir={directory}/mount",
        f"--csi.stagingdir={directory}/staging",
        f"--csi.testvolumesize={env.size}",
        f"--csi.testvolumeexpandsize={2 * env.size}",
        "--ginkgo.no-color",
        f"--ginkgo.json-report={report}",
    ]
    if env.parameters:
        file = directory / "parameters.yaml"
        file.write_text(json.dumps(env.parameters))
        argv.append(f"--csi.testvolumeparameters={file}")
    if env.secrets:
        file = directory / "secrets.yaml"
        file.write_text(json.dumps({f"{kind}Secret": env.secrets for kind in SECRETS}))
        argv.append(f"--csi.secrets={file}")
    try:
        done = await env.host.run(argv, timeout=LIMIT, check=False, env=dict(os.environ))
    except TimeoutError:
        await env.recover()
        return [_full_text(CaseVerdict.FAILED, f"not finished after {LIMIT:g} s")]
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
