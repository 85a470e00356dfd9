"""Names and words: one class name has one meaning, functions are verbs or predicates, no private vocabulary.

Each rule is also shown to fail on a deliberate violation.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "volplane"


def words_of(text: str) -> frozenset[str]:
    return frozenset(text.split())


# --- one class name, one meaning

# Class names that stand in two files, with the reason. Kubernetes and gRPC give two things the same name;
# code of our own has no such excuse.
SHARED_CLASS_NAMES = {
    "AlreadyExists": "the Status reason of the API, and the gRPC code that drivers raise",
    "EndpointPort": "core/v1 and discovery.k8s.io/v1 have one each",
    "Event": "core/v1 and events.k8s.io/v1 have one each",
    "EventSeries": "core/v1 and events.k8s.io/v1 have one each",
    "NotFound": "the Status reason of the API, and the gRPC code that drivers raise",
    "TokenRequest": "authentication.k8s.io/v1's kind, and storage.k8s.io/v1's part of a CSIDriver",
    "Unavailable": "the Status reason of the API, and the gRPC code that drivers raise",
}


def test_a_class_name_has_one_meaning() -> None:
    repeated = repeated_class_names(python_files())
    unexpected = {name: places for name, places in repeated.items() if name not in SHARED_CLASS_NAMES}
    assert not unexpected, _report(f"{name}: {', '.join(places)}" for name, places in unexpected.items())


def test_the_list_of_shared_class_names_is_short_and_true() -> None:
    assert len(SHARED_CLASS_NAMES) <= 20
    assert not SHARED_CLASS_NAMES.keys() - repeated_class_names(python_files()).keys()


def test_two_classes_of_one_name_are_found(tmp_path: Path) -> None:
    (tmp_path / "queue.py").write_text("class Waiting: ...\n")
    (tmp_path / "worker.py").write_text("def f():\n    class Waiting: ...\n")
    assert repeated_class_names(tmp_path.glob("*.py")).keys() == {"Waiting"}


def repeated_class_names(files: Iterable[Path]) -> dict[str, list[str]]:
    found = defaultdict[str, list[str]](list)
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{_relative(path)}:{node.lineno}")
    return {name: places for name, places in sorted(found.items()) if len(places) > 1}


# --- functions are named by verbs or predicates

IRREGULAR = words_of(
    """
    begun bent bitten blown born bought bound broken brought built caught chosen dealt done drawn
    driven drunk eaten fallen fed felt flown forgiven forgotten fought found frozen given gone got
    gotten grown heard held hidden hung kept known laid learnt led left lent lit lost made meant met
    misbound mistaken overridden paid proven risen rung said seen sent shaken shown shrunk slept
    sold sought sown spent spoken spun stolen stood struck stuck sung sunk sworn swum taken taught
    thought thrown told torn trodden unbound undone unknown unseen withdrawn withheld woken won worn
    woven written
    """
)
NOT_PARTICIPLES = words_of(
    """
    bed bleed breed embed exceed feed heed hundred need proceed seed shed speed succeed
    """
)
# Names that a protocol outside of this project prescribes: (file below src/volplane, name) → whose.
PRESCRIBED: dict[tuple[str, str], str] = {}


def test_no_function_is_named_by_a_bare_participle() -> None:
    found = [found for found in participle_functions(python_files()) if found[:2] not in PRESCRIBED]
    assert not found, _report(f"{path}:{line} {name}" for path, name, line in found)


@pytest.mark.parametrize(
    "source",
    [
        "def told(): ...",
        "async def _listed(): ...",
        "class Queue:\n    @property\n    def held(self): ...",
        "def view():\n    def unbound(): ...",
    ],
)
def test_a_participle_is_found(source: str, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(source)
    assert len(participle_functions([tmp_path / "module.py"])) == 1


@pytest.mark.parametrize(
    "name", ["is_bound", "list_claims", "embed", "needs", "read", "put", "mark_detached"]
)
def test_a_verb_is_not_taken_for_a_participle(name: str) -> None:
    assert not is_participle(name)


def participle_functions(files: Iterable[Path]) -> list[tuple[str, str, int]]:
    return [
        (_relative(path), node.name, node.lineno)
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_participle(node.name)
    ]


def is_participle(name: str) -> bool:
    word = name.strip("_").lower()
    return word in IRREGULAR or (word.endswith("ed") and word.isalpha() and word not in NOT_PARTICIPLES)


# --- words that only this project would understand

FORBIDDEN = words_of(
    """
    ledger ledgers shelf shelves crowd crowds guest guests scene scenes story stories door doors
    books glance glances wish wishes wished told hearsay furnish furnishes furnished whoever nobody
    somebody hopeless
    """
)
FORBIDDEN_PHRASES = ("subtle thing", "in vain", "of its own accord", "is at it", "last word", "last words")


class Permitted(NamedTuple):
    """Where a forbidden word is right: the lines of one file that match."""

    file: str
    line: str
    reason: str


PERMITTED: tuple[Permitted, ...] = (
    Permitted("src/volplane/cloud/model.py", 'name="told"', "the name of a field in stored records"),
    Permitted("docs/drivers-seen.md", "mountOptions=guest", "an option of SMB mounts"),
)


def test_no_private_words_in_source_and_documentation() -> None:
    found = [hit for hit in forbidden_words(text_files()) if not _is_permitted(hit)]
    assert not found, _report(f"{hit.file}:{hit.number} {hit.word!r}: {hit.line.strip()}" for hit in found)


def test_every_permitted_word_is_still_there() -> None:
    found = list(forbidden_words(text_files()))
    unused = [p for p in PERMITTED if not any(hit.file == p.file and p.line in hit.line for hit in found)]
    assert not unused


@pytest.mark.parametrize(
    "text",
    [
        "class NodeLedger: ...",
        "wait_for_guest = 1",
        '"""The subtle thing: a claim may be bound twice."""',
        "raise ValueError('nobody listens')",
        "# the mount was tried in\n# vain",
        "The driver has told no failure.",
    ],
)
def test_a_private_word_is_found(text: str, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(text)
    assert len(list(forbidden_words([tmp_path / "page.md"]))) == 1


def test_a_word_within_a_word_is_not_taken_for_it(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(
        "allowWatchBookmarks bookkeeping indoors history storyboard scenery in vanity"
    )
    assert not list(forbidden_words([tmp_path / "page.md"]))


class Hit(NamedTuple):
    file: str
    number: int
    word: str
    line: str


def forbidden_words(files: Iterable[Path]) -> Iterator[Hit]:
    phrases = [phrase.split() for phrase in FORBIDDEN_PHRASES]
    for path in files:
        text = path.read_text()
        lines = text.splitlines()
        # snake_case and CamelCase are taken apart, and line breaks and comment signs do not divide a phrase.
        matches = list(re.finditer(r"[A-Z]?[a-z]+|[A-Z]+", text))
        words = [match[0].lower() for match in matches]
        for i, (word, match) in enumerate(zip(words, matches, strict=True)):
            found = [word] if word in FORBIDDEN else []
            found += [" ".join(p) for p in phrases if p[0] == word and words[i : i + len(p)] == p]
            for each in found:
                number = text.count("\n", 0, match.start())
                yield Hit(_relative(path), number + 1, each, lines[number])


def _is_permitted(hit: Hit) -> bool:
    return any(hit.file == permitted.file and permitted.line in hit.line for permitted in PERMITTED)


# --- what is read


def python_files() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if not path.name.endswith("_pb2.py"))


def text_files() -> list[Path]:
    data = [path for suffix in ("yaml", "json", "css", "js", "html") for path in SOURCE.rglob(f"*.{suffix}")]
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    return sorted([*python_files(), *data, *pages, *(ROOT / "changelog.d").glob("*.md")])


def _relative(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


def _report(lines: Iterable[str]) -> str:
    return "\n".join(["", *lines])
