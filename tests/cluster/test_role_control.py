"""Requests to crash and start roles: one after the other."""

from __future__ import annotations

import asyncio
from pathlib import Path

from volplane.cluster.role_control import (
    CRASH,
    PAGE,
    START,
    RoleAnswer,
    RoleCannotChange,
    RoleRequest,
    request_role_change,
    serve_role_control,
)


class SlowCluster:
    """A crash ends when the test says so."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.crashing, self.may_end = asyncio.Event(), asyncio.Event()

    async def crash_role(self, role: str) -> str:
        self.crashing.set()
        await self.may_end.wait()
        self.calls.append(f"{role} is down")
        return "down"

    async def start_role(self, role: str) -> str:
        self.calls.append(f"{role} starts")
        if role != "node/a":
            raise RoleCannotChange(f"no role {role}")
        return "starting"

    async def issue_page_link(self) -> str:
        if not self.calls:
            raise RoleCannotChange("this cluster serves no live page")
        return "http://127.0.0.1:1/?token=x"


async def test_a_new_address_of_the_live_page_is_given_or_refused(tmp_path: Path) -> None:
    path, cluster = str(tmp_path / "control"), SlowCluster()
    async with serve_role_control(path, cluster):
        refused = await request_role_change(path, RoleRequest(PAGE))
        assert (refused.failed, refused.message) == (True, "this cluster serves no live page")
        cluster.calls.append("has a page")
        given = await request_role_change(path, RoleRequest(PAGE))
        assert (given.failed, given.message) == (False, "http://127.0.0.1:1/?token=x")


async def test_a_node_starts_only_after_its_crash_has_ended(tmp_path: Path) -> None:
    path, cluster = str(tmp_path / "control"), SlowCluster()
    async with serve_role_control(path, cluster), asyncio.TaskGroup() as group:
        crash = group.create_task(request_role_change(path, RoleRequest(CRASH, "node/a")))
        await cluster.crashing.wait()
        start = group.create_task(request_role_change(path, RoleRequest(START, "node/a")))
        await asyncio.sleep(0.05)
        assert cluster.calls == []
        cluster.may_end.set()
        assert (await crash, await start) == (RoleAnswer("down"), RoleAnswer("starting"))
    assert cluster.calls == ["node/a is down", "node/a starts"]


async def test_a_refusal_is_answered_and_the_next_request_is_served(tmp_path: Path) -> None:
    path, cluster = str(tmp_path / "control"), SlowCluster()
    async with serve_role_control(path, cluster):
        refused = await request_role_change(path, RoleRequest(START, "node/b"))
        assert refused == RoleAnswer("no role node/b", failed=True)
        assert await request_role_change(path, RoleRequest(START, "node/a")) == RoleAnswer("starting")
