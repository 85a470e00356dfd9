"""The name of a test that fails, the moment it does: a run of half an hour may be watched, or cut off."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # a worker's reports are told by whoever hands out the tests
        config.pluginmanager.register(FailurePrinter(config))


class FailurePrinter:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)  # behind the letter of the test
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.write_line(f"\n{report.when} failed: {report.nodeid}")
