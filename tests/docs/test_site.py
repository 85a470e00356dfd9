"""The documentation as a site: it builds without a warning, and is read and searched without a network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.support import peers
from tests.support.up import BIN
from tools.docs_hooks import make_links_absolute, separate_blocks

ROOT = Path(__file__).parents[2]
PATIENCE = 300


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    peers.require("mkdocs")
    place = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [peers.path("mkdocs"), "build", "--strict", "--site-dir", str(place)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "WARNING" not in done.stdout
    return place


class Resources(HTMLParser):
    """What a browser loads for a page, and the ids and links that it has."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attributes}
        if "id" in found:
            self.ids.add(found["id"])
        if tag == "a":
            self.links.append(found.get("href", ""))
        elif tag == "link" and found.get("rel") in ("stylesheet", "icon"):
            self.loaded.append(found["href"])
        elif "src" in found:
            self.loaded.append(found["src"])


def test_every_page_loads_files_of_the_site_only(site: Path) -> None:
    pages = {page: Resources(page) for page in site.rglob("*.html") if page.name != "404.html"}
    assert len(pages) > 90
    for page, found in pages.items():
        assert found.loaded
        for name in found.loaded:
            assert "://" not in name, f"{page} loads {name}"
            assert (page.parent / name.partition("?")[0]).exists(), f"{page} loads {name}"


def test_every_link_within_the_site_leads_somewhere(site: Path) -> None:
    pages = {page: Resources(page) for page in site.rglob("*.html") if page.name != "404.html"}
    for page, found in pages.items():
        for link in found.links:
            if "://" in link or link in ("", ".", "#") or link.startswith("javascript:"):
                continue
            name, _, anchor = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            assert target.exists(), f"{page} links to {link}"
            if anchor and target in pages:
                assert anchor in pages[target].ids | {"__toc", "__search"}, f"{page} links to {link}"


def test_links_to_the_repository_lead_to_files_that_exist(site: Path) -> None:
    blob = "https://github.com/volplane/volplane/blob/main/"
    found = {
        link.removeprefix(blob).partition("#")[0]
        for page in site.rglob("*.html")
        for link in Resources(page).links
        if link.startswith(blob)
    }
    assert found
    assert [name for name in found if not (ROOT / name).exists()] == []


def search(browser: str, site: Path, home: Path, words: str) -> str:
    """The page after a search, as a browser that has opened it as a file."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={home}"]
    command = [browser, *options, "--virtual-time-budget=20000", "--dump-dom"]
    done = subprocess.run(
        [*command, f"file://{site}/index.html?q={words}"],
        env={**os.environ, "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return done.stdout


def test_the_search_works_for_files_without_a_server(site: Path, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("there is no chromium on this machine")
    assert "No matching documents" in search(browser, site, tmp_path, "no-such-word")
    shown = search(browser, site, tmp_path, "kubeconfig")
    assert re.search(r"[1-9]\d* matching documents", shown)
    assert 'href="command-line.html' in shown.partition("md-search-result__list")[2]


def test_a_list_after_a_paragraph_is_a_list() -> None:
    text = "Why:\n- one\n  more\n- two\n| a |\n|---|\n\n```\nx\n- y\n```\n1. z\n"
    assert separate_blocks(text) == (
        "Why:\n\n- one\n  more\n- two\n\n| a |\n|---|\n\n```\nx\n- y\n```\n1. z\n"
    )


def test_links_out_of_the_site_lead_to_the_repository() -> None:
    text = "[a](../README.md) [b](explain.md#x) [c](#d) [e](https://f.g) [h](../../src/i.yaml)"
    assert make_links_absolute(text, "contracts/j.md") == (
        "[a](../README.md) [b](explain.md#x) [c](#d) [e](https://f.g)"
        " [h](https://github.com/volplane/volplane/blob/main/src/i.yaml)"
    )


def code_blocks(page: Path) -> list[str]:
    return re.findall(r"^```[a-z]*\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.root
@pytest.mark.slow
def test_every_command_of_the_start_page_runs(tmp_path: Path) -> None:
    page = ROOT / "docs" / "index.md"
    commands = [line for block in code_blocks(page) for line in block.splitlines()]
    assert commands == ["volplane demo"]  # one command, one picture, one table
    assert len(re.findall(r"^!\[", page.read_text(), re.MULTILINE)) == 1
    assert len(re.findall(r"^\|---", page.read_text(), re.MULTILINE)) == 1
    env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    for command in commands:
        done = subprocess.run(
            ["bash", "-ec", command], env=env, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.peer("kubectl", "csi-sanity", "hostpathplugin")
def test_the_figures_of_the_readme_are_measured_by_a_tool() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "python -m tools.compare" in readme
    done = subprocess.run(
        [str(BIN / "python"), "-m", "tools.compare", "--rounds", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for row in ("until a pod with a new volume is ready", "memory"):
        assert re.search(rf"^\| {row} \| [\d.]+ (s|MB) ", done.stdout, re.MULTILINE), done.stdout
        assert row in readme
    cases = re.search(r"^\| cases of volplane test-driver \| (\d+) \|", done.stdout, re.MULTILINE)
    specs = re.search(r"^\| specs of csi-sanity \| (\d+),", done.stdout, re.MULTILINE)
    assert cases
    assert specs
    assert f"| {cases[1]} cases, and csi-sanity's " in readme
    assert f"| {specs[1]} specs |" in readme
