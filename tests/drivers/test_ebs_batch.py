"""Many questions about volumes become few requests."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.ebs import ebs_environment
from volplane.base import metrics
from volplane.drivers.ebs import connect_ec2
from volplane.drivers.ebs.batch import MAX_BATCH, RequestBatcher


class Cloud:
    """Answers when it is let; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.gate = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self, keys: list[str]) -> dict[str, str]:
        self.asked.append(keys)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return {key: key.upper() for key in keys if key != "missing"}


async def test_questions_gather_while_one_request_is_under_way() -> None:
    cloud = Cloud()
    batch: RequestBatcher[str] = RequestBatcher(cloud)
    first = asyncio.create_task(batch.get("a"))
    await asyncio.sleep(0)
    others = [asyncio.create_task(batch.get(key)) for key in ("b", "c", "b", "missing")]
    await asyncio.sleep(0)
    assert cloud.asked == [["a"]]  # a single lookup is sent at once
    cloud.gate.set()
    assert await asyncio.gather(first, *others) == ["A", "B", "C", "B", None]
    assert cloud.asked == [["a"], ["b", "c", "missing"]]
    await batch.close()


async def test_a_request_has_a_limit_and_an_error_is_everybodys() -> None:
    cloud = Cloud()
    batch: RequestBatcher[str] = RequestBatcher(cloud)
    cloud.gate.set()
    keys = [str(number) for number in range(MAX_BATCH + 1)]
    assert await asyncio.gather(*map(batch.get, keys)) == keys
    assert [len(asked) for asked in cloud.asked] == [MAX_BATCH, 1]
    cloud.error = RuntimeError("no")
    results = await asyncio.gather(batch.get("x"), batch.get("y"), return_exceptions=True)
    assert [str(error) for error in results] == ["no", "no"]
    cloud.error = None
    assert await batch.get("x") == "X"
    await batch.close()


def count_described() -> float:
    labels = {"action": "DescribeVolumes", "code": "OK"}
    return metrics.registry.get_sample_value("volplane_cloud_requests_total", labels) or 0.0


@pytest.mark.root
async def test_sixty_questions_at_once_are_one_request(tmp_path: Path) -> None:
    async with ebs_environment(tmp_path) as w:
        volumes = [await w.create(f"v{number}") for number in range(20)]
        ec2 = await connect_ec2(w.account, w.host)
        before = count_described()
        results = await asyncio.gather(*(ec2.volume(volume) for volume in volumes * 3))
        assert [volume.id for volume in results] == volumes * 3
        assert count_described() - before == 1
        await ec2.close()
        for volume in volumes:
            await w.delete(volume)
