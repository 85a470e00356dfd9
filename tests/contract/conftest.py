"""Where the cases play: one marked `both` is played twice, over HTTPS with the driver on its socket, and in
memory in virtual time, where the silence that it waits through is as long as it says.
"""

from __future__ import annotations

import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.get_closest_marker("both") is not None:
        memory = pytest.param("in memory", marks=pytest.mark.virtual)
        metafunc.parametrize("played_on", ["https", memory], indirect=True)


@pytest.fixture(autouse=True)
def played_on(request: pytest.FixtureRequest) -> str:
    return str(getattr(request, "param", ""))
