"""Print the name and the error of a failed test at once, so that a long run can be watched or interrupted."""

from __future__ import annotations

import pytest

LONGEST_ERROR = 1000  # characters; the whole error is printed at the end of the run


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # the main process prints the reports of workers
        config.pluginmanager.register(FailurePrinter(config))


class FailurePrinter:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)  # after the letter of the test
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.write_line(f"\n{report.when} failed: {report.nodeid}")
            terminal.write_line(_find_error(report)[:LONGEST_ERROR])


def _find_error(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return crash.message if crash is not None else report.longreprtext.rpartition("\n")[2]
