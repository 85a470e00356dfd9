"""A release is consistent: its version is the same everywhere, and public names change on purpose only."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.docs.public_names import GOLDEN, list_public_names

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
VERSION = PROJECT["project"]["version"]
FRAGMENT = re.compile(r"[a-z0-9-]+\.(added|changed|fixed|removed)\.md")


def test_the_public_names_are_those_of_the_list() -> None:
    assert GOLDEN.read_text().splitlines() == list(list_public_names()), (
        "run python -m tests.docs.public_names"
    )


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("CHANGELOG.md", "## {version} ("),
        ("deploy/Dockerfile", "volplane/volplane:{version} "),
        ("deploy/helm/volplane-csi/Chart.yaml", "version: {version}\n"),
        ("deploy/helm/volplane-csi/Chart.yaml", 'appVersion: "{version}"\n'),
        ("docs/deploy.md", "volplane/volplane:{version} "),
        ("docs/install.md", "./dist/volplane-{version}-py3-none-any.whl\n"),
        ("docs/test-your-driver.md", "./dist/volplane-{version}-py3-none-any.whl\n"),
        ("docs/test-your-driver.md", "volplane/volplane@v{version}\n"),
        ("docs/pytest-plugin.md", "./volplane-{version}-py3-none-any.whl "),
        ("src/volplane/drivers/ebs/constants.py", 'VERSION = "ebs.csi.aws.com", "{version}"\n'),
        ("src/volplane/drivers/efs/driver.py", 'VERSION = "efs.csi.aws.com", "{version}"\n'),
    ],
)
def test_a_file_has_the_version_of_the_project(file: str, line: str) -> None:
    assert line.format(version=VERSION) in (ROOT / file).read_text()


def test_the_newest_section_of_the_changelog_is_this_version() -> None:
    assert re.findall(r"^## (\S+) \(", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0] == VERSION


def test_every_fragment_has_a_known_type_and_says_one_thing() -> None:
    for path in (ROOT / "changelog.d").glob("*.md"):
        assert FRAGMENT.fullmatch(path.name), path.name
        assert path.read_text().strip(), path.name
        assert "\n" not in path.read_text().strip(), f"{path.name} has more than one line"


def test_the_project_has_classifiers_and_links() -> None:
    assert "Typing :: Typed" in PROJECT["project"]["classifiers"]
    assert {"Documentation", "Source", "Issues", "Changelog"} <= PROJECT["project"]["urls"].keys()
