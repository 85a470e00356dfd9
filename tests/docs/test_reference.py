"""The documentation names what exists, and nothing that does not."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from volplane.cli import VERBS

ROOT = Path(__file__).parent.parent.parent


def _tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "tools" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_as_new_as_the_code() -> None:
    tool = _tool()
    assert tool.PAGE.read_text() == tool.page(), "run `make reference`"


def test_the_readme_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text


@pytest.mark.parametrize(
    "page", sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").rglob("*.md")), ids=lambda p: p.name
)
def test_every_verb_that_a_page_types_exists(page: Path) -> None:
    named = set(re.findall(r"(?:`|^|/bin/|\$\()volplane ([a-z][a-z-]+)", page.read_text(), re.M))
    assert named <= set(VERBS), f"{page.name} names verbs that do not exist: {named - set(VERBS)}"


@pytest.mark.parametrize(
    "page", sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").rglob("*.md")), ids=lambda p: p.name
)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
