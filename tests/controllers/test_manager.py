"""The table of controllers."""

from __future__ import annotations

import pytest

from volplane.apiserver.in_process_server import InProcessServer
from volplane.client.client import Client
from volplane.controllers.manager import (
    CONTROLLERS,
    ControllerManagerOptions,
    UnknownController,
    build_controllers,
    select_controllers,
)
from volplane.host import Host
from volplane.store.memory import MemoryStore
from volplane.volumes.flex.prober import FlexProber

PROBER = FlexProber("/unused", Host())


async def test_every_line_of_the_table_leads_to_a_controller_of_that_name() -> None:
    client = Client(InProcessServer(MemoryStore()).in_process_transport())
    assert [controller.name for controller in build_controllers(lambda account: client, PROBER)] == list(
        CONTROLLERS
    )
    await client.close()


async def test_settings_reach_the_controllers() -> None:
    client = Client(InProcessServer(MemoryStore()).in_process_transport())
    settings = ControllerManagerOptions(
        controllers=("persistentvolume-attach-detach-controller",),
        max_wait_for_unmount=7.0,
        disable_force_detach_on_timeout=True,
        wait_for_deleted_nodes=True,
    )
    (made,) = build_controllers(lambda account: client, PROBER, settings)
    assert (made.grace, made.force) == (7.0, False)  # type: ignore[attr-defined]
    assert made.wait_for_deleted_nodes  # type: ignore[attr-defined]
    await client.close()


def test_names_choose() -> None:
    assert select_controllers(("*",)) == list(CONTROLLERS)
    assert select_controllers(("namespace-controller",)) == ["namespace-controller"]
    assert "namespace-controller" not in select_controllers(("*", "-namespace-controller"))


def test_an_unknown_name_is_told_with_the_known_ones() -> None:
    with pytest.raises(UnknownController, match="no controller is called 'nonsense'; there are: persistent"):
        select_controllers(("*", "-nonsense"))
