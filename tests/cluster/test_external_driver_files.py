"""Driver files, and error messages for invalid ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from volplane.cluster import external_driver
from volplane.cluster.external_driver import DeploymentShape, ExternalDriver, InvalidDriver

CLASS = """
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: fast}
provisioner: x.example.com
"""


def read(directory: Path, text: str) -> ExternalDriver:
    file = directory / "driver.yaml"
    file.write_text(text)
    return external_driver.read_driver_file(file)


def test_one_command_is_controller_and_node_alike(tmp_path: Path) -> None:
    made = read(tmp_path, "command: /bin/sleep $NODE_ID")
    assert made.is_single_program
    assert made.node is not None
    assert made.node.argv == ("/bin/sleep", "${NODE_ID}")
    assert made.node.directory == str(tmp_path)


def test_each_side_has_its_own_command(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    made = read(
        tmp_path,
        """
        name: x.example.com
        controller: [/bin/sleep, 1]
        node: {command: /bin/sleep 2, env: {LEVEL: 3, DEBUG: true}, workingDir: sub}
        deployment: central
        sidecars: {provisioner: [--timeout=5s]}
        images: {x/y: /bin/sleep 7}
        """,
    )
    assert made.name == "x.example.com"
    assert made.controller is not None
    assert made.controller.argv == ("/bin/sleep", "1")
    assert made.node is not None
    assert made.node.env == {"LEVEL": "3", "DEBUG": "true"}
    assert made.node.directory == str(tmp_path / "sub")
    assert made.shape is DeploymentShape.CENTRAL
    assert made.sidecars == {"provisioner": ("--timeout=5s",)}
    assert made.images["x/y"].argv == ("/bin/sleep", "7")
    assert not made.is_single_program


def test_objects_come_along(tmp_path: Path) -> None:
    driver = "apiVersion: storage.k8s.io/v1\nkind: CSIDriver\nmetadata: {name: x.example.com}\n"
    secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {a: b}\n"
    config = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n"
    made = read(tmp_path, "---\n".join(("command: /bin/sleep 1\n", driver, CLASS, secret, config)))
    assert made.name == "x.example.com"
    assert made.driver is not None
    assert [c.name for c in made.classes] == ["fast"]
    assert [s.name for s in made.secrets] == ["s"]
    assert [o.name for o in made.objects] == ["c"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("command: /bin/sleep 1\n---\ncommand: /bin/sleep 1", "one document without `kind`.* not 2"),
        (CLASS, "one document without `kind`.* not 0"),
        ("- a\n", "document 1: must be a mapping"),
        ("a: [", "is not YAML"),
        ("name: x", "command: is missing"),
        ("controller: /bin/sleep 1", "node: is missing"),
        (
            "command: /bin/sleep 1\nnode: /bin/sleep 1",
            "node: the driver already has a command for all instances",
        ),
        ("node: {env: {}}", "node.command: is missing"),
        ("node: {command: /bin/sleep, dir: x}", "node.dir: is unknown; known fields are command, env, work"),
        ("command: ./nothing", "command: .*/nothing does not exist"),
        ("command: 7", "command: must be a line or a list of words"),
        ("command: /bin/sleep\nworkingDir: nowhere", "workingDir: .*/nowhere is not a directory"),
        ("command: /bin/sleep\nenv: {A: [1]}", "env.A: must be text"),
        ("command: /bin/sleep\ndeployment: both", "deployment: must be one of auto, central, .* not both"),
        ("command: /bin/sleep\nsidecars: {prober: []}", "sidecars.prober: is unknown"),
        ("command: /bin/sleep\nsidecars: {resizer: 5}", "sidecars.resizer: must be a list of flags"),
        ("command: /bin/sleep\nimages: {a: nothing-here}", 'images.a: "nothing-here" is not a program'),
        ("command: /bin/sleep\n---\napiVersion: v9\nkind: Thing", "Thing: v9 Thing is not served here"),
        (
            "command: /bin/sleep\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: 7}",
            "Secret 7: Expected `str`",
        ),
    ],
)
def test_what_is_wrong_names_the_field_and_the_reason(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(InvalidDriver, match=why) as caught:
        read(tmp_path, text)
    assert "driver.yaml" in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidDriver, match="no such file"):
        external_driver.read_driver_file(tmp_path / "none.yaml")


def test_a_program_is_no_driver_file(tmp_path: Path) -> None:
    (tmp_path / "driver").write_bytes(b"\x7fELF\xd0\xff")
    with pytest.raises(InvalidDriver, match=r"driver is not text: .* use --driver-command"):
        external_driver.read_driver_file(tmp_path / "driver")
