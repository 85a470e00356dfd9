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
from tests.explain.journey.spans import BACK, DELETE, FORWARDS, stored
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
    for each in spans:
        recorder.write(msgspec.json.encode(each.span))


def make_recorder(directory: Path) -> SpanRecorder:
    (directory / "spans").mkdir()
    return SpanRecorder(directory / "spans", "up", max_size=1 << 20, max_age=3600.0)


def copy_kubeconfig(file: str, directory: Path) -> None:
    (directory / "kubeconfig").write_bytes(Path(file).read_bytes())


async def test_recorded_steps_are_printed_once_as_they_come_until_the_volume_is_deleted(
    tmp_path: Path,
) -> None:
    (tmp_path / "kubeconfig").write_text("")
    recorder = make_recorder(tmp_path)
    record(recorder, FORWARDS[:1])
    async with following("pvc/data", "--all", "--data-dir", str(tmp_path)) as process:
        record(recorder, FORWARDS[1:])
        first = await read_until(process, "StartContainer")
        assert "COMPONENT" in first[0]
        record(recorder, BACK)
        second = await read_until(process, "ControllerUnpublishVolume")
        assert not any("COMPONENT" in line or "StartContainer" in line for line in second)
        record(recorder, DELETE)
        assert await process.wait() == 0
    recorder.close()


async def test_the_way_back_is_followed_after_the_claim_is_gone(tmp_path: Path) -> None:
    """A claim may go while its volume is still unmounted, detached and deleted."""
    (tmp_path / "kubeconfig").write_text("")
    recorder = make_recorder(tmp_path)
    record(recorder, FORWARDS)
    async with following("pvc/data", "--all", "--data-dir", str(tmp_path)) as process:
        await read_until(process, "StartContainer")
        record(recorder, DELETE[:3])
        await read_until(process, "status.phase=Released")
        record(recorder, BACK)
        await read_until(process, "ControllerUnpublishVolume")
        record(recorder, DELETE[3:])
        await read_until(process, "DeleteVolume")
        assert await process.wait() == 0
    recorder.close()


async def test_where_nothing_is_recorded_objects_and_events_are_followed(tmp_path: Path) -> None:
    """Steps were recorded once, and not of this claim: it would never come."""
    async with https_apiserver() as api:
        copy_kubeconfig(api.kubeconfig, tmp_path)
        recorder = make_recorder(tmp_path)
        record(recorder, (stored(0, 1, "apiserver", "create", "pvc/default/other"),))
        async with following("pvc/data", "--all", "--data-dir", str(tmp_path)) as process:
            assert process.stderr is not None
            note = (await process.stderr.readline()).decode()
            assert note == "pvc/default/data does not exist yet: waiting for it\n"
            await api.client.create(objects.claim("data", "1Gi", "gone"))
            first = await read_until(process, "create  pvc/default/data")
            assert "KNOWN BY" in first[0]
            merge = {"metadata": {"finalizers": None}}
            await api.client.patch(PersistentVolumeClaim, "data", "default", merge=merge)
            await api.client.delete(PersistentVolumeClaim, "data", "default")
            assert await process.wait() == 0
        recorder.close()


async def test_steps_of_an_object_that_does_not_exist_yet_are_waited_for(tmp_path: Path) -> None:
    async with https_apiserver() as api:
        copy_kubeconfig(api.kubeconfig, tmp_path)
        recorder = make_recorder(tmp_path)
        async with following("pvc/data", "--all", "--data-dir", str(tmp_path)) as process:
            assert process.stderr is not None
            await process.stderr.readline()
            record(recorder, (*FORWARDS, *BACK, *DELETE))
            first = await read_until(process, "DeleteVolume")
            assert "SINCE START" in first[0]
            assert await process.wait() == 0
        recorder.close()


async def test_a_cluster_that_is_stopped_and_has_recorded_nothing_is_an_error(tmp_path: Path) -> None:
    async with https_apiserver() as api:
        copy_kubeconfig(api.kubeconfig, tmp_path)
    make_recorder(tmp_path)
    async with following("pvc/data", "--data-dir", str(tmp_path)) as process:
        assert process.stderr is not None
        errors = (await process.stderr.read()).decode()
        assert await process.wait() == 1
        assert "the API server does not answer" in errors


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
