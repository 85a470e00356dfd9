"""How long the removal of a node from its container runtime is tried."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from volplane.base import clock
from volplane.csi.outcome import CallError, Code
from volplane.node.containers.cri import removal
from volplane.node.containers.cri.client import CriClient, CriError, RuntimeUnavailable

pytestmark = pytest.mark.virtual


async def test_a_removal_that_is_not_refused_takes_its_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    removed: list[str] = []

    async def remove_slowly(cri: CriClient, root: str) -> None:
        await asyncio.sleep(removal.PATIENCE * 3)
        removed.append(root)

    monkeypatch.setattr(removal, "_remove_all", remove_slowly)
    await removal.remove_node(f"unix://{tmp_path}/nothing.sock", "/n/1")
    assert removed == ["/n/1"]
    assert not caplog.records


@pytest.mark.parametrize(
    ("kind", "code", "patience"),
    [(CriError, Code.UNKNOWN, removal.PATIENCE), (RuntimeUnavailable, Code.UNAVAILABLE, 0)],
    ids=["refused", "no answer"],
)
async def test_the_last_error_is_logged(
    kind: type[CriError],
    code: Code,
    patience: float,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def refuse(cri: CriClient, root: str) -> None:
        raise kind("RemovePodSandbox", CallError(code, "it is being started"))

    monkeypatch.setattr(removal, "_remove_all", refuse)
    begun = clock.now()
    with caplog.at_level(logging.WARNING):
        await removal.remove_node(f"unix://{tmp_path}/nothing.sock", "/n/1")
    assert patience <= clock.now() - begun <= patience + removal.RETRY.longest
    (record,) = caplog.records
    assert record.getMessage().startswith("containers of /n/1 may be left in the container runtime: ")
    assert "it is being started" in record.getMessage()
