"""Print the name of a failed test at once, so that a long run can be watched or interrupted."""

from __future__ import annotations

import pytest


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
