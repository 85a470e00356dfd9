"""What the interceptor records, and what it can do to a call."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from volplane import sdk
from volplane.base import trace
from volplane.csi import v1
from volplane.csi.call_interceptor import ANY, CallInterceptor, CsiCall
from volplane.csi.outcome import CallError, Code
from volplane.sdk import Local

pytestmark = pytest.mark.virtual


class Counting(sdk.Driver):
    name, version = "counting.example.com", "1.0"

    def __init__(self) -> None:
        super().__init__()
        self.created: list[str] = []

    async def create_volume(self, request: v1.CreateVolumeRequest) -> v1.CreateVolumeResponse:
        self.created.append(request.name)
        if request.name == "bad":
            raise sdk.errors.OutOfRange("too large")
        volume = v1.Volume(volume_id=f"{request.name}-{len(self.created)}")
        return v1.CreateVolumeResponse(volume=volume)

    async def delete_volume(self, request: v1.DeleteVolumeRequest) -> v1.DeleteVolumeResponse:
        return v1.DeleteVolumeResponse()


def create_request(name: str = "one", **more: Any) -> v1.CreateVolumeRequest:
    mode = v1.VolumeCapability.AccessMode(mode=v1.VolumeCapability.AccessMode.SINGLE_NODE_WRITER)
    capability = v1.VolumeCapability(mount={}, access_mode=mode)
    return v1.CreateVolumeRequest(name=name, volume_capabilities=[capability], **more)


async def test_calls_are_recorded_with_their_outcome_and_without_secrets() -> None:
    recorder = CallInterceptor()
    channel = Local(Counting(), component="csi-provisioner", interceptor=recorder)
    await channel.call("CreateVolume", create_request(secrets={"password": "open sesame"}))
    with pytest.raises(CallError):
        await channel.call("CreateVolume", create_request("bad"))
    first, second = recorder.calls
    assert (first.method, first.caller, first.code) == ("CreateVolume", "csi-provisioner", "OK")
    assert '"volume_id":"one-1"' in first.response
    assert "open sesame" not in first.request
    assert "stripped" in first.request
    assert (second.code, second.message) == ("OUT_OF_RANGE", "too large")
    assert second.end >= second.start > 0


async def test_steps_of_a_journey_have_request_and_answer_without_secrets() -> None:
    recorded, lines = trace.start(), list[bytes]()
    recorded.sinks.append(lines.append)
    recorded.index.learn("pvc/default/data", ("a" * 32,))
    channel = Local(Counting(), component="csi-provisioner")
    request = create_request(secrets={"password": "open sesame"})
    await channel.call("CreateVolume", request, subject="pvc/default/data")
    begun, *_, ended = (trace.decode_span(line) for line in lines)
    assert (begun.step, begun.end) == ("CreateVolume", 0)
    assert ended.step == "CreateVolume"
    assert "stripped" in str(ended.attrs["request"])
    assert '"volume_id":"one-1"' in str(ended.attrs["reply"])
    assert not any(b"sesame" in line for line in lines)


async def test_two_interceptors_in_one_process_see_their_own_calls_only() -> None:
    recorders = CallInterceptor(), CallInterceptor()
    channels = [Local(Counting(), interceptor=recorder) for recorder in recorders]
    await Local(Counting()).call("CreateVolume", create_request("none"))
    for channel, name in zip(channels, ("one", "two"), strict=True):
        await channel.call("CreateVolume", create_request(name))
    assert [['"one"' in call.request for call in recorder.calls] for recorder in recorders] == [
        [True],
        [False],
    ]


async def test_a_callback_gets_each_call_that_has_ended() -> None:
    ended: list[CsiCall] = []
    channel = Local(Counting(), interceptor=CallInterceptor(ended.append))
    await channel.call("CreateVolume", create_request())
    assert [(call.method, call.code) for call in ended] == [("CreateVolume", "OK")]


async def test_a_held_call_is_sent_when_it_is_released() -> None:
    driver = Counting()
    recorder = CallInterceptor()
    channel = Local(driver, interceptor=recorder)
    hold = recorder.hold("CreateVolume")
    calling = asyncio.create_task(channel.call("CreateVolume", create_request()))
    await hold.wait_for_call(60)
    await asyncio.sleep(100)
    assert driver.created == []
    hold.release()
    await calling
    await channel.call("CreateVolume", create_request("two"))  # a hold is for one call
    assert driver.created == ["one", "two"]


async def test_a_held_call_goes_on_when_the_rules_are_removed() -> None:
    recorder = CallInterceptor()
    channel = Local(Counting(), interceptor=recorder)
    hold = recorder.hold("CreateVolume")
    calling = asyncio.create_task(channel.call("CreateVolume", create_request()))
    await hold.wait_for_call(60)
    recorder.remove_rules()
    assert (await calling).volume.volume_id == "one-1"


@pytest.mark.parametrize(("after", "created"), [(False, []), (True, ["one"])], ids=["before", "after"])
async def test_a_cut_call_is_uncertain_to_the_caller(after: bool, created: list[str]) -> None:
    driver = Counting()
    recorder = CallInterceptor()
    channel = Local(driver, interceptor=recorder)
    recorder.cut("CreateVolume", after=after, code=Code.DEADLINE_EXCEEDED)
    with pytest.raises(CallError) as caught:
        await channel.call("CreateVolume", create_request())
    assert caught.value.code is Code.DEADLINE_EXCEEDED
    assert driver.created == created
    assert recorder.calls[0].code == "DEADLINE_EXCEEDED"
    await channel.call("CreateVolume", create_request())


async def test_a_call_is_sent_twice_and_both_answers_are_kept() -> None:
    recorder = CallInterceptor()
    channel = Local(Counting(), interceptor=recorder)
    rule = recorder.send_twice("CreateVolume")
    reply = await channel.call("CreateVolume", create_request())
    (first, second), *rest = rule.answers
    assert not rest
    assert (first.volume.volume_id, second.volume.volume_id) == ("one-1", "one-2")
    assert reply is second


async def test_callbacks_run_before_and_after_the_driver() -> None:
    driver = Counting()
    recorder = CallInterceptor()
    channel = Local(driver, interceptor=recorder)
    seen: list[tuple[str, int]] = []

    async def later(call: CsiCall) -> None:
        seen.append((call.method, len(driver.created)))

    recorder.before("CreateVolume", lambda call: seen.append((call.method, len(driver.created))))
    await channel.call("CreateVolume", create_request())
    recorder.after("CreateVolume", later)
    await channel.call("CreateVolume", create_request())
    assert seen == [("CreateVolume", 0), ("CreateVolume", 2)]


async def test_a_rule_can_mean_certain_calls_only() -> None:
    driver = Counting()
    recorder = CallInterceptor()
    channel = Local(driver, interceptor=recorder)
    rule = recorder.cut("CreateVolume", where=lambda call: '"two"' in call.request)
    recorder.delay(ANY, 5, times=0, where=lambda call: '"three"' in call.request)
    await channel.call("CreateVolume", create_request("one"))
    with pytest.raises(CallError):
        await channel.call("CreateVolume", create_request("two"))
    await channel.call("CreateVolume", create_request("three"))
    assert [call.number for call in rule.met] == [2]
    assert recorder.calls[2].note == "delayed 5 s"
    assert driver.created == ["one", "three"]
