"""How a sidecar gets to know its driver."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import scripted
from volplane import sdk
from volplane.csi.outcome import CallError, Code
from volplane.sidecars.base import discover_driver


class StallingCaller:
    """The way to a driver on which the first call of every method fails."""

    def __init__(self, caller: sdk.Local, code: Code) -> None:
        self._caller, self._code = caller, code
        self.failed: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._caller, name)

    async def call(self, method: str, request: Any, **options: Any) -> Any:
        if method not in self.failed:
            self.failed.add(method)
            raise CallError(self._code, "not now")
        return await self._caller.call(method, request, **options)


@pytest.mark.virtual
@pytest.mark.parametrize("code", [Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE])
async def test_a_driver_that_does_not_answer_is_asked_again(code: Code) -> None:
    local = sdk.Local(scripted.driver("expand"), component="test")
    stalling: Any = StallingCaller(local, code)
    found = await discover_driver(stalling)
    assert found.name == scripted.NAME
    assert "EXPAND_VOLUME" in found.controller
    assert {"Probe", "GetPluginInfo", "GetPluginCapabilities", "ControllerGetCapabilities"} <= stalling.failed
    await local.close()


@pytest.mark.virtual
async def test_an_answer_that_is_no_is_taken_for_one() -> None:
    local = sdk.Local(scripted.driver(), component="test")
    stalling: Any = StallingCaller(local, Code.INTERNAL)
    with pytest.raises(CallError, match="not now"):
        await discover_driver(stalling)
    await local.close()
