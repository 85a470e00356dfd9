"""A few failed tests are run once more, alone, in a new process: `--second-look N`.

Real processes, disks and clocks on a shared machine fail now and then for reasons that are nobody's change.
What passes alone is called unsteady: it is listed with its first failure and does not fail the run. What
fails again has failed; so has everything when more than N tests failed, or when something was left behind.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

CATEGORY = "unsteady"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--second-look", type=int, default=0, metavar="N", help="run up to N failed tests again")


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")  # whoever hands out the tests looks, for all
    if (limit := config.getoption("--second-look")) and not is_worker:
        config.pluginmanager.register(SecondLook(limit))


class SecondLook:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.failed: dict[str, pytest.TestReport] = {}
        self.beyond = False  # something failed that running a test again says nothing about

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.failed:
            return
        if report.when == "teardown":
            self.beyond = True
        self.failed[report.nodeid] = report

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.beyond = self.beyond or report.failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus != pytest.ExitCode.TESTS_FAILED or self.beyond:
            return
        if not 0 < len(self.failed) <= self.limit:
            return
        again = self._again(session)
        terminal = session.config.pluginmanager.get_plugin("terminalreporter")
        assert terminal is not None
        terminal.write_sep("=", "second look")
        terminal.write_line(again.stdout)
        if again.returncode == 0:
            for sort in ("failed", "error"):
                terminal.stats.pop(sort, None)
            terminal.stats[CATEGORY] = list(self.failed.values())
            session.exitstatus = pytest.ExitCode.OK

    def _again(self, session: pytest.Session) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *self.failed]
        return subprocess.run(
            command,
            cwd=session.config.rootpath,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for report in terminalreporter.stats.get(CATEGORY, ()):
            terminalreporter.write_sep("_", f"{CATEGORY}: {report.nodeid}")
            terminalreporter.write_line(report.longreprtext)
