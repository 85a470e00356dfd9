"""Run upstream's csi-sanity, if it is on PATH, and report its specs as cases."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from volplane.testing import sanity_failure
from volplane.testing.runner import CaseResult, CaseVerdict
from volplane.testing.socket_env import SocketEnv

CASE = "sanity/csi-sanity"
PROGRAM = "csi-sanity"
TIMEOUT = 600.0  # seconds for all of its specs
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
# A new directory for each spec; csi-sanity uses the printed path.
CREATE_PATH = """#!/bin/sh
exec mktemp -d "$1.XXXXXX"
"""
# Unmount what the driver has left, innermost first, before anything is removed. In the table of mounts spaces
# and backslashes are octal numbers, as printf reads and sed writes them here.
REMOVE_PATH = r"""#!/bin/sh
AT=$(printf '%s' "$1" | sed 's/\\/\\134/g; s/ /\\040/g; s/\t/\\011/g')
export AT
awk '$5 == ENVIRON["AT"] || index($5, ENVIRON["AT"] "/") == 1 {print $5}' /proc/self/mountinfo | tac |
while IFS= read -r left; do
    umount -l "$(printf "$(printf '%s' "$left" | sed 's/%/%%/g')")" || exit 1
done || exit 1
exec rm -rf --one-file-system "$1"
"""
CHECK_PATH = """#!/bin/sh
if [ -f "$1" ]; then echo file
elif [ -d "$1" ]; then echo directory
elif [ -e "$1" ]; then echo other
else echo not_found
fi
"""
VERDICTS = {"passed": CaseVerdict.PASSED, "skipped": CaseVerdict.SKIPPED}


def find_program() -> str | None:
    return shutil.which(PROGRAM)


async def run(env: SocketEnv, directory: Path) -> list[CaseResult]:
    """A result for each spec; one skipped result if csi-sanity is missing."""
    program = find_program()
    if program is None or not env.capabilities.has("create"):
        why = "is not on PATH" if program is None else "needs a driver that creates volumes"
        return [_result_of_run(CaseVerdict.SKIPPED, f"{PROGRAM} {why}")]
    await env.host.call(directory.mkdir, exist_ok=True)
    report = directory / "report.json"
    argv = [
        program,
        f"--csi.endpoint=unix://{env.nodes[0].instance.socket}",
        f"--csi.controllerendpoint=unix://{env.controller.instance.socket}",
        f"--csi.mountdir={directory}/mount",
        f"--csi.stagingdir={directory}/staging",
        *await env.host.call(_write_path_commands, directory),
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
        done = await env.host.run(argv, timeout=TIMEOUT, check=False, env=dict(os.environ))
    except TimeoutError:
        await env.recover()
        return [_result_of_run(CaseVerdict.FAILED, f"not finished after {TIMEOUT:g} s")]
    finally:
        for entry in (await env.host.mounts()).under(str(directory)):
            await env.host.unmount(entry.target, detach=True)
    if not report.exists():
        return [_result_of_run(CaseVerdict.FAILED, f"no report: {done.output[-2000:]}")]
    suites = json.loads(report.read_text())
    specs = [spec for suite in suites for spec in suite.get("SpecReports") or ()]
    return [made for spec in specs if (made := _result(spec)) is not None]


def _write_path_commands(directory: Path) -> list[str]:
    """Programs that create, remove and check paths for one spec: what one leaves does not fail the next."""
    flags = []
    for name, script in (("create", CREATE_PATH), ("remove", REMOVE_PATH)):
        file = directory / f"{name}-path"
        file.write_text(script)
        file.chmod(0o755)
        flags += [f"--csi.{name}{kind}pathcmd={file}" for kind in ("mount", "staging")]
    check = directory / "check-path"
    check.write_text(CHECK_PATH)
    check.chmod(0o755)
    return [*flags, f"--csi.checkpathcmd={check}"]


def _result_of_run(verdict: CaseVerdict, reason: str) -> CaseResult:
    return CaseResult(CASE, PROGRAM, "Upstream's own tests.", verdict, reason)


def _result(spec: dict[str, Any]) -> CaseResult | None:
    if spec.get("LeafNodeType") != "It" or spec["State"] == "pending":
        return None
    path = [*(spec.get("ContainerHierarchyTexts") or ()), spec["LeafNodeText"]]
    verdict = VERDICTS.get(spec["State"], CaseVerdict.FAILED)
    failure = spec.get("Failure") or {}
    # The reason of a skipped spec is one sentence already.
    skipped = verdict is CaseVerdict.SKIPPED
    reason = failure.get("Message", "") if skipped else sanity_failure.describe(spec)
    return CaseResult(
        f"sanity/{' '.join(path[1:])}",
        f"csi-sanity: {path[0]}",
        "Upstream's own test of this name.",
        verdict,
        f"csi-sanity: {reason}" if reason else "",
        spec.get("RunTime", 0) / 1e9,
    )
