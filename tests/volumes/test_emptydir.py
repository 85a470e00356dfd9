"""The size of a tmpfs and the page size of an emptyDir."""

from __future__ import annotations

from typing import Any

import pytest

from volplane.api.codec import convert
from volplane.api.core import Pod
from volplane.volumes.base import VolumeOperationError
from volplane.volumes.emptydir import find_page_size, memory_size

GIB = 1 << 30


def pod(*containers: dict[str, Any], **spec: Any) -> Pod:
    return convert(Pod, {"spec": {"containers": [{"name": "c", "resources": c} for c in containers], **spec}})


def limited(memory: str) -> dict[str, Any]:
    return {"limits": {"memory": memory}}


@pytest.mark.parametrize(
    ("of", "size_limit", "size"),
    [
        (pod({}), None, 8 * GIB),
        (pod({}), "1Gi", GIB),
        (pod({}), "0", 8 * GIB),
        (pod({}), "16Gi", 8 * GIB),
        (pod(limited("2Gi"), limited("1Gi")), None, 3 * GIB),
        (pod(limited("2Gi"), limited("1Gi")), "4Gi", 3 * GIB),
        (pod(limited("2Gi"), {}), None, 8 * GIB),
        (pod(limited("16Gi")), None, 8 * GIB),
    ],
)
def test_a_tmpfs_has_the_smallest_of_the_limits(of: Pod, size_limit: str | None, size: int) -> None:
    assert memory_size(of, size_limit, {"memory": "8Gi"}) == size


def test_without_any_limit_the_kernel_decides() -> None:
    assert memory_size(pod({}), None, {}) == 0


def pages(*sizes: str) -> dict[str, Any]:
    return {"requests": {f"hugepages-{size}": "4Mi" for size in sizes}}


@pytest.mark.parametrize(
    ("of", "medium", "size"),
    [
        (pod(pages("2Mi")), "HugePages", "2Mi"),
        (pod(pages("2Mi", "1Gi")), "HugePages-1Gi", "1Gi"),
        (pod({}, initContainers=[{"name": "i", "resources": pages("2Mi")}]), "HugePages-2Mi", "2Mi"),
        (pod({}, resources=pages("2Mi")), "HugePages", "2Mi"),
    ],
)
def test_the_page_size_is_the_requested_one(of: Pod, medium: str, size: str) -> None:
    assert find_page_size(of, medium) == size


@pytest.mark.parametrize(
    ("of", "medium", "why"),
    [
        (pod({}), "HugePages", "there is no resource request for huge pages"),
        (pod(pages("2Mi")), "HugePages-1Gi", "there is no resource request for huge pages"),
        (pod(pages("2Mi", "1Gi")), "HugePages", "multiple huge page sizes"),
        (pod(pages("2Mi")), "HugePages-lots", 'unknown storage medium "HugePages-lots"'),
        (pod(pages("2Mi")), "HugePagesX", 'unknown storage medium "HugePagesX"'),
    ],
)
def test_a_page_size_that_cannot_be_used_is_refused(of: Pod, medium: str, why: str) -> None:
    with pytest.raises(VolumeOperationError, match=why):
        find_page_size(of, medium)
