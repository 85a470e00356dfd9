"""When cases do not apply, or must not judge: decided from what they find."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from tests.support import sample_driver
from tests.support.driver_cases import failed_reasons, passed_cases, run_cases
from volplane.api.meta import ObjectMeta
from volplane.api.storage import StorageClass
from volplane.cluster import external_driver
from volplane.host.mounts import MountEntry
from volplane.testing import runner
from volplane.testing.capabilities import DriverCapabilities
from volplane.testing.case import NotSupported
from volplane.testing.cases import ALL_CASES
from volplane.testing.cases.arguments import is_disk
from volplane.testing.cases.file_attributes import SPARSE_SIZE, FileAttributes, differences
from volplane.testing.cases.process_leaks import descriptors_and_threads
from volplane.testing.cases.snapshots_clones import format_time
from volplane.testing.runner import CaseVerdict
from volplane.testing.socket_env import SocketEnv


@pytest.mark.parametrize(
    ("root", "source", "expected"),
    [
        ("/", "/dev/loop7", True),
        ("/volumes/a", "/dev/sda1", False),
        ("/", "server:/export", False),
        ("/", "tmpfs", False),
        ("/", "s3fs", False),
    ],
)
def test_only_disks_have_a_file_system_type_of_their_own(root: str, source: str, expected: bool) -> None:
    assert is_disk(MountEntry(1, 0, "7:0", root, "/t", (), "", "ext4", source, ())) is expected


@pytest.mark.parametrize(("size", "changes"), [(100, 0), (SPARSE_SIZE, 1)], ids=["small", "large"])
def test_only_large_files_are_expected_to_stay_sparse(size: int, changes: int) -> None:
    was = FileAttributes("-", "0644", "0:0", size)
    now = FileAttributes("-", "0644", "0:0", size, allocated=max(size, 4096))
    assert len(differences({"a": was}, {"a": now})) == changes


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0, "1970-01-01T00:00:00+00:00"), (1e12, "1000000000000 s after 1970")],
)
def test_every_creation_time_can_be_shown(seconds: float, shown: str) -> None:
    assert format_time(seconds) == shown


def test_inline_volumes_have_no_controller() -> None:
    reported = DriverCapabilities(plugin={"CONTROLLER_SERVICE"}, controller={"GET_VOLUME"})
    assert reported.has("controller")
    assert not reported.without_staging().has("controller")


@pytest.mark.root
@pytest.mark.slow
async def test_lifecycles_that_take_too_long_are_not_repeated(tmp_path: Path) -> None:
    driver = external_driver.from_command(sample_driver.command_line())
    async with SocketEnv(driver, tmp_path / "s", nodes=1) as env:
        env.case_timeout = 0.01
        with pytest.raises(NotSupported, match="take too long to repeat"):
            await descriptors_and_threads(env)
        assert await env.clean() == []


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize("allowed", [None, False])
async def test_claims_are_not_expanded_if_the_class_forbids_it(allowed: bool | None) -> None:
    own = StorageClass(
        metadata=ObjectMeta(name="own"), provisioner="blocks.example.com", allow_volume_expansion=allowed
    )
    driver = structs.replace(external_driver.from_command(sample_driver.command_line()), classes=(own,))
    names = ("expand", "every call lost once", "driver killed after ControllerExpandVolume")
    run = await run_cases(driver, cases=runner.select_cases(ALL_CASES, f"^cluster/({'|'.join(names)})$", ""))
    assert failed_reasons(run) == {}
    assert passed_cases(run) == ["cluster/every call lost once"]
    reason = (
        "not supported: claims cannot be expanded: their StorageClass does not have "
        "allowVolumeExpansion: true"
    )
    assert {result.reason for result in run.results if result.verdict is CaseVerdict.SKIPPED} == {reason}
