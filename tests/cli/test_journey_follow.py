"""`volplane journey --follow` prints steps as they happen, with recorded steps and without."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from tests.controllers import objects
from tests.explain import explain_objects
from tests.explain.journey.spans import BACK, DELETE, FORWARDS
from tests.support.https_apiserver import https_apiserver
from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.storage import VolumeAttachment
from volplane.base.span_store import SpanRecorder, StoredSpan

PATIENCE = 60.0


@asynccontextmanager
async def following(*words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "volplane", "journey", *words, "--follow"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "KUBECONFIG": ""},
    )
    try:
        async with asyncio.timeout(PATIENCE):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def read_until(process: asyncio.subprocess.Process, text: str) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or text not in lines[-1]:
        line = (await process.stdout.readline()).decode()
        assert line, f"{text}: not among {lines}"
        lines.append(line)
    return lines


def record(recorder: SpanRecorder, spans: tuple[StoredSpan, ...]) -> None:
    for stored in spans:
        recorder.write(msgspec.json.encode(stored.span))


async def test_recorded_steps_are_printed_once_as_they_come_until_the_volume_is_deleted(
    tmp_path: Path,
) -> None:
    (tmp_path / "kubeconfig").write_text("")
    (tmp_path / "spans").mkdir()
    recorder = SpanRecorder(tmp_path / "spans", "up", max_size=1 << 20, max_age=3600.0)
    async with following("pvc/data", "--all", "--data-dir", str(tmp_path)) as process:
        record(recorder, FORWARDS)
        first = await read_until(process, "StartContainer")
        assert "COMPONENT" in first[0]
        record(recorder, BACK)
        second = await read_until(process, "ControllerUnpublishVolume")
        assert not any("COMPONENT" in line or "StartContainer" in line for line in second)
        record(recorder, DELETE)
        assert await process.wait() == 0
    recorder.close()


async def test_of_any_other_cluster_what_objects_and_events_show_is_followed_until_the_claim_is_gone() -> (
    None
):
    async with https_apiserver() as api:
        await api.client.create(objects.account())
        async with following("pvc/data", "--all", "--kubeconfig", api.kubeconfig) as process:
            await api.client.create(objects.claim("data", "1Gi", "gone"))
            first = await read_until(process, "create  pvc/default/data")
            assert "KNOWN BY" in first[0]
            await api.client.create(objects.pod("web", "data", on="worker-1"))
            await read_until(process, "create  pod/default/web")
            await api.client.delete(Pod, "web", "default", grace=0)
            merge = {"metadata": {"finalizers": None}}
            await api.client.patch(PersistentVolumeClaim, "data", "default", merge=merge)
            await api.client.delete(PersistentVolumeClaim, "data", "default")
            assert await process.wait() == 0


async def test_of_a_deleted_claim_its_volume_is_followed_until_that_is_gone() -> None:
    async with https_apiserver() as api:
        claim = await api.client.create(objects.claim("data", "1Gi", "gone"))
        ref = {"namespace": "default", "name": "data", "uid": claim.uid}
        await api.client.create(objects.volume("pv-1", claimRef=ref))
        merge: dict[str, object] = {"spec": {"volumeName": "pv-1"}, "metadata": {"finalizers": None}}
        await api.client.patch(PersistentVolumeClaim, "data", "default", merge=merge)
        merge = {"spec": {"persistentVolumeReclaimPolicy": "Delete"}, "metadata": {"finalizers": None}}
        await api.client.patch(PersistentVolume, "pv-1", merge=merge)
        async with following("pvc/data", "--all", "--kubeconfig", api.kubeconfig) as process:
            await read_until(process, "create  pv/pv-1")
            await api.client.delete(PersistentVolumeClaim, "data", "default")
            await api.client.create(explain_objects.attachment("pv-1", "worker-1"))
            await read_until(process, "create  va/")
            await api.client.delete(PersistentVolume, "pv-1")
            attachment = explain_objects.attachment("pv-1", "worker-1")
            await api.client.delete(VolumeAttachment, attachment.name)
            assert await process.wait() == 0


async def test_what_may_not_be_read_is_an_error() -> None:
    async with https_apiserver() as api:
        file = Path(api.kubeconfig).parent / "nobody.kubeconfig"
        api.server.write_kubeconfig(file, "nobody")
        async with following("pvc/data", "--kubeconfig", str(file)) as process:
            assert process.stderr is not None
            errors = (await process.stderr.read()).decode()
            assert await process.wait() == 1
            assert 'persistentvolumeclaims "data" is forbidden' in errors
