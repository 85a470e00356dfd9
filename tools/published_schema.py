"""Renew the marks in src/volplane/api/published_schema.json from the schema that Kubernetes publishes.

    .venv/bin/python tools/published_schema.py

Required fields and integer widths come from the published OpenAPI definitions, as the development dependency
kubernetes-validate carries them. The protobuf numbers stay as they are in the file: OpenAPI does not have
them. A new kind needs a row for each of its messages, with its fields in the order of their numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate

from volplane.api.published_schema import package_of

FILE = Path(__file__).parents[1] / "src/volplane/api/published_schema.json"
PUBLISHED = (
    Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema/v1.35.0-local/_definitions.json"
)

Definition = Mapping[str, Any]


def renew(rows: Mapping[str, str], published: Mapping[str, Definition]) -> dict[str, str]:
    """The rows with the marks of the published definitions."""
    definitions = dict(_definitions(rows, published))
    return {
        row: " ".join(_word(word, definitions[row]) for word in text.split()) for row, text in rows.items()
    }


def _definitions(
    rows: Mapping[str, str], published: Mapping[str, Definition]
) -> Iterator[tuple[str, Definition]]:
    """The definition of each row; an inlined message has that of a message that contains it."""
    for row, text in rows.items():
        group, _, kind = row.partition(".")
        name = f"{package_of(group)}.{kind}"
        if name in published:
            yield row, published[name]
            for word in text.split():
                if word.startswith("^"):
                    yield word[1:], published[name]


def _word(word: str, definition: Definition) -> str:
    if word.isdecimal() or word.startswith("^"):
        return word
    label, sign, type = word.partition("=")
    name, _, form = label.partition(":")
    name = name.rstrip("!")
    mark = "!" if name in definition.get("required", ()) else ""
    if sign:
        return f"{name}{mark}={type}"
    if form in ("", "int64"):
        form = "int64" if _is_int64(definition.get("properties", {}).get(name, {})) else ""
    return f"{name}{mark}:{form}" if form else f"{name}{mark}"


def _is_int64(field: Definition) -> bool:
    inner = field.get("items") or field.get("additionalProperties")
    return _is_int64(inner) if isinstance(inner, dict) else field.get("format") == "int64"


def main() -> None:
    published = json.loads(PUBLISHED.read_text())["$defs"]
    rows = renew(json.loads(FILE.read_text()), published)
    FILE.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
