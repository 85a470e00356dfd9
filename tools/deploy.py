"""Write deploy/kubernetes/ from the chart: the same objects without Helm.

    python tools/deploy.py

The chart's templates use a small part of Helm's language (values, `if`, `if not`, `with`, `toYaml`,
`nindent`, `quote`, `default`), which is rendered here with the chart's default values; anything else is an
error. If Helm is installed, a test compares the result with Helm's.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
CHART = ROOT / "deploy" / "helm" / "volplane-csi"
OUTPUT = ROOT / "deploy" / "kubernetes"
CRDS = ROOT / "src" / "volplane" / "manifests" / "snapshots.yaml"
NAMESPACE = "kube-system"
HEAD = "# From the chart in deploy/helm/volplane-csi, by `make deploy`.\n"


class UnsupportedTemplate(Exception):
    """A template uses something that this renderer does not support."""


def main() -> int:
    for path, text in files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


def files() -> dict[Path, str]:
    """All generated files, by path."""
    definitions = CRDS.read_text()
    found = {CHART / "crds" / "snapshots.yaml": definitions, OUTPUT / "crds.yaml": HEAD + definitions}
    for template in sorted((CHART / "templates").glob("*.yaml")):
        found[OUTPUT / template.name] = HEAD + render(template.read_text())
    names = ["crds.yaml", *sorted(p.name for p in found if p.parent == OUTPUT and p.name != "crds.yaml")]
    listed = "".join(f"  - {name}\n" for name in names)
    kind = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
    found[OUTPUT / "kustomization.yaml"] = f"{HEAD}{kind}resources:\n{listed}"
    return found


def objects(values: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """The objects of the chart, without CustomResourceDefinitions."""
    texts = [render(t.read_text(), values) for t in sorted((CHART / "templates").glob("*.yaml"))]
    return [o for text in texts for o in yaml.safe_load_all(text) if o]


def render(template: str, values: dict[str, Any] | None = None) -> str:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    scope = {
        "Values": merge(yaml.safe_load((CHART / "values.yaml").read_text()), values or {}),
        "Release": {"Namespace": NAMESPACE, "Name": "volplane-csi"},
        "Chart": {"AppVersion": chart["appVersion"], "Name": chart["name"]},
    }
    parts = list(_parts(template))
    text, rest = _block(parts, scope, scope)
    if rest:
        raise UnsupportedTemplate("an end too many")
    return text.lstrip("\n")


def merge(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    both = {k: merge(under[k], v) for k, v in over.items() if isinstance(v, dict) and under.get(k)}
    return {**under, **over, **both}


def _parts(template: str) -> Iterator[tuple[str, str]]:
    """Split a template into (text, code) pairs; a `{{-` tag trims the text before it."""
    place = 0
    for tag in re.finditer(r"\{\{(-?)\s*(.*?)\s*(-?)\}\}", template):
        if tag[3]:
            raise UnsupportedTemplate("-}}")
        text = template[place : tag.start()]
        yield (text.rstrip() if tag[1] else text), tag[2]
        place = tag.end()
    yield template[place:], ""


def _block(
    parts: list[tuple[str, str]], scope: dict[str, Any], dot: Any
) -> tuple[str, list[tuple[str, str]]]:
    """Render up to the `end` of this block; returns the text and the remaining parts."""
    found = ""
    while parts:
        text, code = parts.pop(0)
        found += text
        word, _, rest = code.partition(" ")
        if word == "end":
            return found, parts
        if word in ("if", "with"):
            negated = word == "if" and rest.startswith("not ")
            value = _value(rest.removeprefix("not ") if negated else rest, scope, dot)
            value = not value if negated else value
            inner, parts = _block(parts, scope, value if word == "with" else dot)
            found += inner if value else ""
        elif code:
            found += _format(_value(code, scope, dot))
    return found, parts


def _value(code: str, scope: dict[str, Any], dot: Any) -> Any:
    first, *pipes = (part.strip() for part in code.split("|"))
    value = _yaml(_path(first[7:], scope, dot)) if first.startswith("toYaml ") else _path(first, scope, dot)
    for pipe in pipes:
        name, _, argument = pipe.partition(" ")
        match name:
            case "quote":
                value = f'"{_format(value)}"'
            case "default":
                value = value or _path(argument, scope, dot)
            case "nindent":
                value = "".join(f"\n{' ' * int(argument)}{line}" for line in str(value).splitlines())
            case _:
                raise UnsupportedTemplate(pipe)
    return value


def _path(path: str, scope: dict[str, Any], dot: Any) -> Any:
    if path == ".":
        return dot
    if not re.fullmatch(r"(\.[A-Za-z]+)+", path):
        raise UnsupportedTemplate(path)
    value: Any = scope
    for name in path.lstrip(".").split("."):
        value = value[name]
    return value


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=False).rstrip("\n")


def _format(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    sys.exit(main())
