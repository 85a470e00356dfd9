"""What the documentation site changes in the pages, which are written to be read in the repository.

mkdocs calls these functions by their names.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

REPOSITORY = "https://github.com/volplane/volplane/blob/main/"
DECISIONS = "decisions/"
_ITEM = re.compile(r"\s*(?:[-*]|\d+\.) ")
_INDENTED = re.compile(r"\s{2,}")  # the rest of an item
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")


def on_config(config: Any) -> Any:
    """List the decisions in the navigation, and show the version."""
    source = Path(config["docs_dir"])
    pages = sorted((source / DECISIONS).glob("*.md"))
    listed = [{_title(page): f"{DECISIONS}{page.name}"} for page in pages]
    config["nav"] = _replace(config["nav"], listed)
    project = (source.parent / "pyproject.toml").read_text()
    version = re.search(r'^version = "(.+)"', project, re.MULTILINE)
    assert version
    config["copyright"] = f"Volplane {version[1]}, Apache-2.0"
    return config


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Links to files outside of docs/ lead to the repository."""
    return separate_blocks(make_links_absolute(markdown, page.file.src_uri))


def separate_blocks(markdown: str) -> str:
    """Add the empty line before a list or table that the site's Markdown needs, and GitHub's does not."""
    lines: list[str] = []
    in_code, before = False, ""
    for line in markdown.splitlines():
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code and before.strip() and _begins_block(line, before):
            lines.append("")
        lines.append(line)
        before = "" if line.lstrip().startswith("```") else line
    return "\n".join(lines) + "\n"


def _begins_block(line: str, before: str) -> bool:
    return _block(line) not in ("", _block(before)) and not _INDENTED.match(before)


def _block(line: str) -> str:
    """What kind of block the line belongs to; "" for text."""
    return "table" if line.startswith("|") else "list" if _ITEM.match(line) else ""


def make_links_absolute(markdown: str, place: str) -> str:
    def change(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(place), found[1]))
        return found[1] if target.startswith("docs/") else REPOSITORY + target

    return _LINK.sub(change, markdown)


def _replace(entry: Any, listed: list[dict[str, str]]) -> Any:
    if isinstance(entry, list):
        return [_replace(each, listed) for each in entry]
    if isinstance(entry, dict):
        return {name: _replace(each, listed) for name, each in entry.items()}
    return listed if entry == DECISIONS else entry


def _title(page: Path) -> str:
    return page.read_text().partition("\n")[0].removeprefix("# ")
