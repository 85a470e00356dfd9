"""File descriptors of this process."""

from __future__ import annotations

import os
import resource

import pytest

from volplane.base import descriptors


def test_they_are_counted_without_one_left_to_count_them_with(monkeypatch: pytest.MonkeyPatch) -> None:
    # It has the same entries, and its size is 0, as that of /proc/self/fd is before Linux 6.2.
    monkeypatch.setattr(descriptors, "DIRECTORY", "/proc/self/fdinfo")
    assert os.stat(descriptors.DIRECTORY).st_size == 0
    listed = len(os.listdir("/proc/self/fd"))
    assert descriptors.open_count() == listed
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        counted = descriptors.open_count()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert counted == 3
