"""The options of `up` are saved in the data directory, shown at the next start, and replaced by new ones."""

from __future__ import annotations

import stat
from pathlib import Path

import click
import pytest

from volplane.cli.driver_options import (
    collect_options,
    find_unused_images,
    load_user_drivers,
    resolve_user_drivers,
)
from volplane.cli.error import CommandError
from volplane.cli.options import options
from volplane.cli.runtime_options import resolve_runtime
from volplane.cluster.data_directory import DataDirectory
from volplane.cluster.errors import UnusableDataDirectory
from volplane.cluster.saved_options import SavedOptions, SavedRuntime, load_options, save_options
from volplane.cluster.single_process import ClusterOptions, options_to_save
from volplane.cluster.user_drivers import BadManifest, UserDrivers
from volplane.node.image_overrides import ImageOverride

CLASS = "apiVersion: storage.k8s.io/v1\nkind: CSIDriver\nmetadata: {name: x.example.com}\n"


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataDirectory:
    (tmp_path / "d.yaml").write_text("command: sleep $NODE_ID\n")
    (tmp_path / "m.yaml").write_text(CLASS)
    monkeypatch.chdir(tmp_path)
    made = DataDirectory(tmp_path / "data")
    made.create()
    return made


def everything() -> SavedOptions:
    return collect_options(
        drivers=["d.yaml"],
        commands=["sleep $SECONDS_TO_SLEEP"],
        manifests=["m.yaml"],
        images=["r.io/a=sleep 1"],
        ours=True,
    )


def test_it_is_the_same_from_another_place_with_another_environment(
    layout: DataDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECONDS_TO_SLEEP", "7")
    said = everything()
    with save_options(layout, said):
        pass
    monkeypatch.delenv("SECONDS_TO_SLEEP")
    monkeypatch.chdir("/")
    brought, again = resolve_user_drivers(str(layout.directory))
    assert again
    assert brought == load_user_drivers(said)
    assert brought.drivers[1].node is not None
    assert brought.drivers[1].node.argv[1:] == ("7",)
    assert brought.drivers[1].node.directory == str(tmp_path)
    assert brought.manifests[0]["kind"] == "CSIDriver"
    assert " ".join(said.command_words()) == (
        f"--driver {tmp_path}/d.yaml --driver-command 'sleep $SECONDS_TO_SLEEP' --manifest {tmp_path}/m.yaml"
        " --image 'r.io/a=sleep 1' --builtin-drivers"
    )
    assert stat.S_IMODE(layout.saved_options.stat().st_mode) == 0o600


def test_what_is_said_anew_counts_and_nothing_else(layout: DataDirectory) -> None:
    with save_options(layout, collect_options(drivers=["d.yaml"], images=["r.io/a=sleep 1"])):
        pass
    brought, again = resolve_user_drivers(str(layout.directory), commands=("sleep 2",))
    assert not again
    assert (len(brought.drivers), brought.images, brought.builtin) == (1, {}, False)
    brought, again = resolve_user_drivers(str(layout.directory), ours=True)
    assert not again
    assert (brought.drivers, brought.builtin) == ((), True)


def test_nothing_is_remembered_of_a_first_start(tmp_path: Path) -> None:
    brought, again = resolve_user_drivers(str(tmp_path / "new"))
    assert not again
    assert brought.builtin
    assert not brought.options


def test_what_is_refused_does_not_replace_what_worked(layout: DataDirectory) -> None:
    good, bad = collect_options(drivers=["d.yaml"]), collect_options(manifests=["m.yaml"])
    with save_options(layout, good):
        pass
    inside = []

    def start() -> None:
        with save_options(layout, bad):
            inside.append(load_options(layout))
            raise BadManifest("no")

    with pytest.raises(BadManifest):
        start()
    assert inside == [bad], "written down before anything comes of it"
    assert load_options(layout) == good


def test_a_file_that_is_gone_is_told_with_the_way_out(layout: DataDirectory, tmp_path: Path) -> None:
    with save_options(layout, collect_options(drivers=["d.yaml"])):
        pass
    (tmp_path / "d.yaml").unlink()
    with pytest.raises(CommandError, match="no such file") as caught:
        resolve_user_drivers(str(layout.directory))
    assert f"had the options --driver {tmp_path}/d.yaml" in str(caught.value)
    assert "--builtin-drivers" in str(caught.value)


def test_what_cannot_be_read_is_not_taken_for_nothing(layout: DataDirectory) -> None:
    layout.saved_options.write_text("{")
    with pytest.raises(UnusableDataDirectory, match=r"brought\.json"):
        load_options(layout)


def test_an_image_that_no_manifest_has_is_told() -> None:
    container = {"name": "driver", "image": "registry.example.com:5000/driver:v1"}
    pod = {"spec": {"template": {"spec": {"containers": [container]}}}}
    images = {
        name: ImageOverride(("/bin/true",))
        for name in ("registry.example.com:5000/driver", "registry.example.com/driver:v1")
    }
    assert list(find_unused_images(UserDrivers(manifests=(pod,), images=images))) == [
        "--image registry.example.com/driver:v1: no container of the manifests has this image;"
        " they have registry.example.com:5000/driver:v1"
    ]
    assert list(find_unused_images(UserDrivers(images=images))) == []


# --- the container runtime

ENDPOINT = "unix:///run/some.sock"


def resolve(layout: DataDirectory, *words: str) -> tuple[ClusterOptions, SavedRuntime]:
    """What `up` makes of its command line on this directory."""
    found: list[tuple[ClusterOptions, SavedRuntime]] = []

    @click.command()
    @options(ClusterOptions)
    @click.pass_context
    def verb(context: click.Context, settings: ClusterOptions) -> None:
        found.append(resolve_runtime(settings, context))

    verb.main([f"--data-dir={layout.directory}", *words], standalone_mode=False)
    return found[0]


def save_runtime(layout: DataDirectory, *words: str) -> None:
    settings, _ = resolve(layout, *words)
    with save_options(layout, options_to_save(UserDrivers(), settings)):
        pass


def test_the_runtime_of_the_last_start_is_used_again(layout: DataDirectory) -> None:
    assert resolve(layout)[0].container_runtime_endpoint == ""
    given = ("--nodes=3", "--node=worker-2=process", f"--image-service-endpoint={ENDPOINT}2")
    save_runtime(layout, f"--container-runtime-endpoint={ENDPOINT}", *given)
    settings, used = resolve(layout, "--nodes=3")
    assert settings.container_runtime_endpoint == ENDPOINT
    assert settings.image_service_endpoint == f"{ENDPOINT}2"
    kinds = {"worker-1": "cri", "worker-2": "process", "worker-3": "cri"}
    assert settings.node == kinds
    assert list(used.command_words()) == [
        f"--container-runtime-endpoint {ENDPOINT}",
        f"--image-service-endpoint {ENDPOINT}2",
        *(f"--node {name}={kind}" for name, kind in kinds.items()),
    ]
    # Drivers that are given do not make it forgotten, and it is not one of theirs.
    assert not load_user_drivers(collect_options(drivers=["d.yaml"])).options.runtime.endpoint
    drivers, again = resolve_user_drivers(str(layout.directory))
    assert not again
    assert not drivers.options


def test_nodes_that_are_gone_do_not_change_how_the_others_run(layout: DataDirectory) -> None:
    save_runtime(layout, f"--container-runtime-endpoint={ENDPOINT}", "--nodes=2", "--node=worker-2=cri")
    settings, _ = resolve(layout, "--nodes=1")
    assert settings.node == {"worker-1": "process"}
    assert resolve(layout, "--nodes=2", "--node=worker-2=process")[0].node == {"worker-2": "process"}


def test_an_empty_endpoint_goes_back_to_processes(layout: DataDirectory) -> None:
    save_runtime(layout, f"--container-runtime-endpoint={ENDPOINT}")
    settings, used = resolve(layout, "--container-runtime-endpoint=")
    assert (settings.container_runtime_endpoint, used) == ("", SavedRuntime())
    save_runtime(layout, "--container-runtime-endpoint=")
    assert resolve(layout)[0].container_runtime_endpoint == ""
    other = resolve(layout, f"--container-runtime-endpoint={ENDPOINT}")[0]
    assert other.container_runtime_endpoint == ENDPOINT
