"""What was brought is brought again: kept in the data directory, shown, and replaced by what is said anew."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from volplane.cli.bringing import brought_to, made, say, unused
from volplane.cli.failure import Failure
from volplane.cluster.brought import BadManifest, Brought
from volplane.cluster.errors import Unusable
from volplane.cluster.layout import Layout
from volplane.cluster.said import Said, kept, remembered
from volplane.node.programs import Program

CLASS = "apiVersion: storage.k8s.io/v1\nkind: CSIDriver\nmetadata: {name: x.example.com}\n"


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    (tmp_path / "d.yaml").write_text("command: sleep $NODE_ID\n")
    (tmp_path / "m.yaml").write_text(CLASS)
    monkeypatch.chdir(tmp_path)
    made = Layout(tmp_path / "data")
    made.make()
    return made


def everything() -> Said:
    return say(
        drivers=["d.yaml"],
        commands=["sleep $SECONDS_TO_SLEEP"],
        manifests=["m.yaml"],
        images=["r.io/a=sleep 1"],
        ours=True,
    )


def test_it_is_the_same_from_another_place_with_another_environment(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECONDS_TO_SLEEP", "7")
    said = everything()
    with kept(layout, said):
        pass
    monkeypatch.delenv("SECONDS_TO_SLEEP")
    monkeypatch.chdir("/")
    brought, again = brought_to(str(layout.directory))
    assert again
    assert brought == made(said)
    assert brought.guests[1].node is not None
    assert brought.guests[1].node.argv[1:] == ("7",)
    assert brought.guests[1].node.directory == str(tmp_path)
    assert brought.manifests[0]["kind"] == "CSIDriver"
    assert " ".join(said.words()) == (
        f"--driver {tmp_path}/d.yaml --driver-command 'sleep $SECONDS_TO_SLEEP' --manifest {tmp_path}/m.yaml"
        " --image 'r.io/a=sleep 1' --builtin-drivers"
    )
    assert stat.S_IMODE(layout.brought.stat().st_mode) == 0o600


def test_what_is_said_anew_counts_and_nothing_else(layout: Layout) -> None:
    with kept(layout, say(drivers=["d.yaml"], images=["r.io/a=sleep 1"])):
        pass
    brought, again = brought_to(str(layout.directory), commands=("sleep 2",))
    assert not again
    assert (len(brought.guests), brought.images, brought.ours) == (1, {}, False)
    brought, again = brought_to(str(layout.directory), ours=True)
    assert not again
    assert (brought.guests, brought.ours) == ((), True)


def test_nothing_is_remembered_of_a_first_start(tmp_path: Path) -> None:
    brought, again = brought_to(str(tmp_path / "new"))
    assert not again
    assert brought.ours
    assert not brought.said


def test_what_is_refused_does_not_replace_what_worked(layout: Layout) -> None:
    good, bad = say(drivers=["d.yaml"]), say(manifests=["m.yaml"])
    with kept(layout, good):
        pass
    inside = []

    def start() -> None:
        with kept(layout, bad):
            inside.append(remembered(layout))
            raise BadManifest("no")

    with pytest.raises(BadManifest):
        start()
    assert inside == [bad], "written down before anything comes of it"
    assert remembered(layout) == good


def test_a_file_that_is_gone_is_told_with_the_way_out(layout: Layout, tmp_path: Path) -> None:
    with kept(layout, say(drivers=["d.yaml"])):
        pass
    (tmp_path / "d.yaml").unlink()
    with pytest.raises(Failure, match="no such file") as told:
        brought_to(str(layout.directory))
    assert f"was told --driver {tmp_path}/d.yaml" in str(told.value)
    assert "--builtin-drivers" in str(told.value)


def test_what_cannot_be_read_is_not_taken_for_nothing(layout: Layout) -> None:
    layout.brought.write_text("{")
    with pytest.raises(Unusable, match=r"brought\.json"):
        remembered(layout)


def test_an_image_that_no_manifest_has_is_told() -> None:
    container = {"name": "driver", "image": "registry.example.com:5000/driver:v1"}
    pod = {"spec": {"template": {"spec": {"containers": [container]}}}}
    images = {
        name: Program(("/bin/true",))
        for name in ("registry.example.com:5000/driver", "registry.example.com/driver:v1")
    }
    assert list(unused(Brought(manifests=(pod,), images=images))) == [
        "--image registry.example.com/driver:v1: no container of the manifests has this image;"
        " they have registry.example.com:5000/driver:v1"
    ]
    assert list(unused(Brought(images=images))) == []
