"""Write the rows of kinds without a Struct into src/volplane/api/published_schema.json.

    go mod download k8s.io/api@v0.35.4 k8s.io/kube-aggregator@v0.35.4
    .venv/bin/python tools/data_kinds.py ~/go/pkg/mod/k8s.io

Such a row also has the type of each field (see `api.data_types`): whether Go holds it by pointer, and whether
it is written when it is empty, are not in the published OpenAPI definitions. They are read from the tags of
Kubernetes' Go types. Then run tools/published_schema.py.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.published_schema import FILE
from volplane.api import kinds

VERSION = "v0.35.4"
SOURCES = {"apiregistration": f"kube-aggregator@{VERSION}/pkg/apis/apiregistration"}
SCALARS = {
    "string": "string",
    "bool": "bool",
    "int32": "int32",
    "int64": "int64",
    "int": "int32",
    "float64": "double",
    "[]byte": "bytes",
    "v1.ResourceName": "string",
    "metav1.Time": "Time",
    "metav1.MicroTime": "MicroTime",
    "resource.Quantity": "Quantity",
    "intstr.IntOrString": "IntOrString",
    "runtime.RawExtension": "any",
}
IMPORTS = {"metav1": "meta", "v1": "core", "corev1": "core", "core": "core"}

_STRUCT = re.compile(r"^type (\w+) struct ?\{(|\n.*?^)\}$", re.M | re.S)
_NAMED = re.compile(r"^type (\w+) (?!struct)(=? ?[\w.\[\]*]+)$", re.M)
_FIELD = re.compile(r"^\t(?:(\w+)\s+)?([\w.*\[\]]+)\s+`(.*)`", re.M)
_TAG = re.compile(r'(\w+):"([^"]*)"')


class GoFile(NamedTuple):
    group: str  # as in the names of rows
    structs: Mapping[str, str]
    named: Mapping[str, str]


def read_types(root: Path, group: str) -> GoFile:
    name, _, version = group.partition("/")
    folder = root / SOURCES.get(name, f"api@{VERSION}/{name}") / (version or "v1")
    text = (folder / "types.go").read_text()
    return GoFile(group, dict(_STRUCT.findall(text)), {n: t.strip() for n, t in _NAMED.findall(text)})


def rows_of(root: Path, group: str, kind: str) -> Iterator[tuple[str, str]]:
    """The rows of a kind and of all messages that it uses."""
    file, todo, seen = read_types(root, group), [kind], set()
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            row, used = row_of(file, name)
            yield f"{group}.{name}", row
            todo += used


def row_of(file: GoFile, name: str) -> tuple[str, list[str]]:
    words: dict[int, str] = {}
    used: list[str] = []
    comments = ""
    for line in file.structs[name].splitlines():
        if line.strip().startswith("//"):
            comments += line.strip() + "\n"
        elif found := _FIELD.match(line):
            tags = dict(_TAG.findall(found[3]))
            if "protobuf" in tags:
                number = int(tags["protobuf"].split(",")[1])
                words[number] = _word(file, name, found[2], tags, comments, used)
            comments = ""
        else:
            comments = ""
    return " ".join(_in_order(words)), used


def _in_order(words: Mapping[int, str]) -> Iterator[str]:
    expected = 1
    for number in sorted(words):
        if number != expected:
            yield str(number)
        yield words[number]
        expected = number + 1


def _word(
    file: GoFile, owner: str, type: str, tags: Mapping[str, str], comments: str, used: list[str]
) -> str:
    name, *options = tags["json"].split(",")
    if type == "metav1.ObjectMeta" and "metav1.TypeMeta" in file.structs[owner]:
        return "metadata"
    if "inline" in options:
        return f"^{_type(file, type, used)}"
    written = "" if "omitempty" in options else "~"
    return f"{name}={_type(file, type, used)}{written}{_merging(tags, comments)}"


def _merging(tags: Mapping[str, str], comments: str) -> str:
    text = f"%{tags['patchMergeKey']}" if "merge" in tags.get("patchStrategy", "") else ""
    if "+listType=map" in comments:
        text += "&" + ",".join(re.findall(r"\+listMapKey=(\w+)", comments))
    elif "+listType=set" in comments:
        text += "&"
    return text


def _type(file: GoFile, type: str, used: list[str]) -> str:
    if type in SCALARS:
        return SCALARS[type]
    for prefix, sign in (("*", "*"), ("[]", "[]"), ("map[string]", "{}"), ("map[ResourceName]", "{}")):
        if type.startswith(prefix):
            return sign + _type(file, type.removeprefix(prefix), used)
    if found := re.match(r"map\[\w+\]", type):  # keys are strings of some sort
        return "{}" + _type(file, type[found.end() :], used)
    if type == "v1.ResourceList":
        return "{}Quantity"
    package, _, name = type.rpartition(".")
    if package:
        return "string" if name in _STRINGS else f"{IMPORTS[package]}.{name}"
    if type in file.structs:
        used.append(type)
        return f"{file.group}.{type}"
    target = file.named[type]
    if type in _STRINGS:
        return "string"
    if target.startswith("="):  # an alias of the type in v1
        return f"{file.group.partition('/')[0]}.{type}"
    return _type(file, target, used)


# Types of other packages, and aliases, that are strings.
_STRINGS = {
    "ConditionStatus",
    "CoordinatedLeaseStrategy",
    "NodeName",
    "OperationType",
    "PreemptionPolicy",
    "Protocol",
    "ReinvocationPolicyType",
    "ScopeType",
    "StatusReason",
    "UID",
}
# Of a package that has no other type without a Struct.
_GROUP_RESOURCE = ("meta.GroupResource", "group=string~ resource=string~")


def main(root: Path) -> None:
    rows: dict[str, str] = json.loads(FILE.read_text()) | dict([_GROUP_RESOURCE])
    for kind in kinds.ALL:
        if kind.message:
            group, _, name = kind.message.partition(".")
            rows |= rows_of(root, group, name)
    FILE.write_text(json.dumps(dict(sorted(rows.items())), indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
