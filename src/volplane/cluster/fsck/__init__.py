"""Check a data directory: do the stores, the disks and the machine agree, and what can be repaired."""

from __future__ import annotations

import time
from collections.abc import Callable

from volplane.cluster.data_directory import DataDirectory
from volplane.cluster.fsck.model import CheckFinding, Severity
from volplane.cluster.fsck.plan import plan
from volplane.cluster.fsck.repair import repair_findings
from volplane.cluster.fsck.survey import read_survey

__all__ = ["CheckFinding", "Severity", "check_directory", "repair_findings"]

PAUSE = 2.0  # seconds between two surveys of a running cluster


def check_directory(layout: DataDirectory, report: Callable[[str], None]) -> list[CheckFinding]:
    """What does not agree. In a running cluster something is always between two states, so it is read twice,
    and what was found both times counts.
    """
    survey = read_survey(layout, report)
    found = list(plan(survey))
    if not survey.running or not found:
        return found
    report("reading again")
    time.sleep(PAUSE)
    again = {(finding.about, finding.message) for finding in plan(read_survey(layout, report))}
    return [finding for finding in found if (finding.about, finding.message) in again]
