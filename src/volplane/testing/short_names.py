"""Short names of the plugin's fixtures, for tests that set `volplane_short_names` in their configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from volplane.testing.plugin import choose_driver

if TYPE_CHECKING:
    from volplane.testing.object_handles import ClaimHandle, RunningPod


@pytest.fixture(scope="session")
def csi_driver(pytestconfig: pytest.Config) -> object:
    """The driver under test, as `volplane_driver`. Override it to choose the driver in Python."""
    return choose_driver(pytestconfig)


@pytest.fixture(scope="session")
def volplane_driver(csi_driver: object) -> object:
    """The driver that `csi_driver` chooses."""
    return csi_driver


@pytest.fixture
def claim(volplane_claim: Callable[..., ClaimHandle]) -> Callable[..., ClaimHandle]:
    """Create claims, as `volplane_claim`."""
    return volplane_claim


@pytest.fixture
def pod(volplane_pod: Callable[..., RunningPod]) -> Callable[..., RunningPod]:
    """Create pods, as `volplane_pod`."""
    return volplane_pod
