"""Generate requests from the server's OpenAPI v3: from nearly valid to hostile.

The document lists paths, verbs, parameters and fields. What it does not contain (which strings are valid)
comes from small samples of each kind, which are then mutated according to the schema.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import yaml
from hypothesis import strategies as st
from msgspec import Struct

from tests.fuzz.samples import SAMPLES
from tests.fuzz.values import (
    ACCEPTS,
    ANYTHING,
    APPLY,
    BOOLEANS,
    METHODS,
    NAMES,
    NAMESPACES,
    NUMBERS,
    ODD_NAMES,
    PATCHES,
    PLAIN,
    QUERY,
    RUBBISH,
    TEXTS,
    TYPES,
)  # fmt: skip

Json = Any
Draw = Callable[[st.SearchStrategy[Any]], Any]


class ApiOperation(Struct, frozen=True):
    method: str
    path: str  # with {namespace} and {name}
    kind: str
    version: str
    schema: str = ""  # of its body
    query: tuple[str, ...] = ()
    keeps: bool = False  # objects of this kind can be read back


class FuzzRequest(Struct):
    operation: ApiOperation
    method: str
    path: str
    query: list[tuple[str, str]]
    headers: dict[str, str]
    body: bytes

    @property
    def target(self) -> str:
        asked = "&".join(f"{quote(k)}={quote(v)}" for k, v in self.query)
        return f"{self.path}?{asked}" if asked else self.path

    def __str__(self) -> str:
        return f"{self.method} {self.target} {self.headers} {self.body[:3000]!r}"


class PublishedSchemas:
    """All OpenAPI documents: operations, and schemas by name."""

    def __init__(self, documents: list[Json], extra: list[ApiOperation]) -> None:
        self.schemas: dict[str, Json] = {}
        self.operations: list[ApiOperation] = []
        for document in documents:
            self.schemas |= document["components"]["schemas"]
            self.operations += _operations(document)
        self.operations += extra
        self.kept = sorted({op.path.partition("/{name}")[0] for op in self.operations if op.keeps})

    def of(self, collection: str) -> list[ApiOperation]:
        return [op for op in self.operations if op.path.partition("/{name}")[0] == collection]


def _operations(document: Json) -> Iterator[ApiOperation]:
    paths = document["paths"]
    for path, methods in paths.items():
        for method, body in methods.items():
            if method == "parameters":
                continue
            gvk = body["x-kubernetes-group-version-kind"]
            group = f"{gvk['group']}/" if gvk["group"] else ""
            content = body.get("requestBody", {}).get("content", {})
            reference = next((c["schema"].get("$ref", "") for c in content.values()), "")
            item = path if "{name}" in path else f"{path}/{{name}}"
            yield ApiOperation(
                method.upper(),
                path,
                gvk["kind"],
                f"{group}{gvk['version']}",
                reference.rpartition("/")[2],
                tuple(p["name"] for p in body.get("parameters", ())),
                "get" in paths.get(item.partition("{name}")[0] + "{name}", {}),
            )


class RequestGenerator:
    """Generates a sequence of requests from one source of random choices."""

    def __init__(self, published: PublishedSchemas, draw: Draw) -> None:
        self.published, self.draw = published, draw
        # A sequence uses a few kinds only, so that requests find objects of earlier ones.
        self.topics = [
            published.of(c) for c in draw(st.lists(st.sampled_from(published.kept), min_size=2, max_size=3))
        ]
        self.creates = [
            op for ops in self.topics for op in ops if op.method == "POST" and "{name}" not in op.path
        ]
        self.begun = 0
        self.made: dict[str, list[tuple[str, str]]] = {}  # by collection: objects that may exist by now

    def chance(self, percent: int) -> bool:
        drawn: bool = self.draw(st.integers(0, 99)) < percent
        return drawn

    def request(self) -> FuzzRequest:
        self.begun += 1
        of = self.draw(st.sampled_from(self.topics)) if self.chance(85) else self.published.operations
        if self.begun <= 2 * len(self.creates):
            of = self.creates
        operation: ApiOperation = self.draw(st.sampled_from(of))
        method = self.draw(st.sampled_from(METHODS)) if self.chance(4) else operation.method
        namespace, name = self.draw(NAMESPACES), self.draw(NAMES)
        if self.chance(5):
            name = self.draw(ODD_NAMES)
        if self.chance(2):
            namespace = self.draw(ODD_NAMES)
        collection = operation.path.partition("/{name}")[0]
        if method == "POST" and collection == operation.path:
            self.made.setdefault(collection, []).append((namespace, name))
        elif (known := self.made.get(collection)) and self.chance(80):
            namespace, name = self.draw(st.sampled_from(known))
        path = operation.path.replace("{namespace}", quote(namespace, safe=""))
        path = path.replace("{name}", quote(name, safe=""))
        headers = {"accept": self.draw(ACCEPTS)} if self.chance(15) else {}
        body = b""
        if method in ("POST", "PUT"):
            body = self.body(operation, name, namespace, headers)
        elif method == "PATCH":
            body = self.patch(operation, name, namespace, headers)
        elif method == "DELETE" and self.chance(30):
            headers["content-type"] = "application/json"
            body = self.encode(self.value(self.published.schemas.get(operation.schema, {}), 2), headers)
        if self.chance(3):
            headers["content-type"] = self.draw(TYPES)
        return FuzzRequest(operation, method, path, self.query(operation), headers, body)

    def query(self, operation: ApiOperation) -> list[tuple[str, str]]:
        if not self.chance(45):
            query = []
        else:
            known = [*operation.query, "pretty"]
            names = self.draw(st.lists(st.sampled_from(known), max_size=2))
            query = [(n, self.draw(QUERY.get(n, BOOLEANS))) for n in names]
        if operation.method == "PATCH" and not any(n == "fieldManager" for n, _ in query) and self.chance(90):
            query.append(("fieldManager", "fuzz"))
        return query

    # --- bodies

    def body(self, operation: ApiOperation, name: str, namespace: str, headers: dict[str, str]) -> bytes:
        headers["content-type"] = "application/json"
        if self.chance(8):
            rubbish: bytes = self.draw(RUBBISH)
            if self.chance(50):
                headers["content-type"] = self.draw(TYPES)
            return rubbish
        return self.encode(self.object(operation, name, namespace), headers)

    def encode(self, value: Json, headers: dict[str, str]) -> bytes:
        if self.chance(10):
            headers["content-type"] = "application/yaml"
            return yaml.safe_dump(value, allow_unicode=True).encode()
        text = json.dumps(value).encode()
        return text[: self.draw(st.integers(0, len(text)))] if self.chance(2) else text

    def object(self, operation: ApiOperation, name: str, namespace: str) -> Json:
        """Return a mutated sample, or a value generated from the schema."""
        schema = self.published.schemas.get(operation.schema, {})
        sample = SAMPLES.get(operation.kind)
        if sample is None or self.chance(15):
            made = self.value(schema, 4)
        else:
            made = copy.deepcopy(sample)
            for _ in range(self.draw(st.sampled_from([0, 0, 1, 1, 2]))):
                self.change(made, schema, 5)
        if isinstance(made, dict):
            made.setdefault("apiVersion", operation.version)
            made.setdefault("kind", operation.kind)
            if isinstance(metadata := made.setdefault("metadata", {}), dict) and self.chance(97):
                metadata["name"] = name
        return made

    def change(self, value: Json, schema: Json, depth: int) -> None:
        """Set or remove one field, at some level."""
        schema = self.resolve(schema)
        fields = schema.get("properties", {})
        if isinstance(value, list) and value:
            return self.change(self.draw(st.sampled_from(value)), schema.get("items", {}), depth)
        if not isinstance(value, dict) or not fields or not depth:
            return None
        inner = [name for name, held in value.items() if isinstance(held, dict | list) and name in fields]
        if inner and self.chance(60):
            name = self.draw(st.sampled_from(inner))
            return self.change(value[name], fields[name], depth - 1)
        name = self.draw(st.sampled_from(sorted(fields)))
        if self.chance(15):
            value.pop(name, None)
        elif self.chance(12):
            value[name] = self.draw(ANYTHING)
        else:
            value[name] = self.value(fields[name], 3)
        return None

    def resolve(self, schema: Json) -> Json:
        while True:
            if "allOf" in schema:
                schema = schema["allOf"][0]
            elif isinstance(schema.get("$ref"), str):
                schema = self.published.schemas[schema["$ref"].rpartition("/")[2]]
            else:
                return schema

    def value(self, schema: Json, depth: int) -> Json:
        schema = self.resolve(schema)
        if self.chance(3):
            return self.draw(ANYTHING)
        match schema.get("type"):
            case "string":
                return self.draw(TEXTS)
            case "integer" | "number":
                return self.draw(NUMBERS)
            case "boolean":
                return self.draw(st.booleans())
            case "array":
                count = self.draw(st.integers(0, 2)) if depth else 0
                return [self.value(schema.get("items", {}), depth - 1) for _ in range(count)]
            case "object":
                return self.fields(schema, depth)
        return self.draw(PLAIN)

    def fields(self, schema: Json, depth: int) -> Json:
        fields = schema.get("properties", {})
        if not fields:
            inner = schema.get("additionalProperties", {})
            keys = self.draw(st.lists(TEXTS, max_size=2)) if depth else []
            return {key: self.value(inner if isinstance(inner, dict) else {}, depth - 1) for key in keys}
        chosen = set(schema.get("required", ()))
        if depth:
            chosen |= set(self.draw(st.lists(st.sampled_from(sorted(fields)), max_size=3)))
        return {name: self.value(fields.get(name, {}), depth - 1) for name in sorted(chosen)}

    # --- patches

    def patch(self, operation: ApiOperation, name: str, namespace: str, headers: dict[str, str]) -> bytes:
        kind = headers["content-type"] = self.draw(st.sampled_from(PATCHES))
        if self.chance(6):
            rubbish: bytes = self.draw(RUBBISH)
            return rubbish
        if kind == PATCHES[0]:
            return json.dumps(self.operations(operation)).encode()
        if kind == APPLY:
            applied = self.object(operation, name, namespace)
            return yaml.safe_dump(applied, allow_unicode=True).encode()
        made = (
            self.object(operation, name, namespace)
            if self.chance(40)
            else {"metadata": {"labels": {"a": "b"}}}
        )
        if kind == PATCHES[2] and isinstance(made, dict) and self.chance(30):
            self.direct(made)
        return json.dumps(made).encode()

    def direct(self, made: Json) -> None:
        """Add strategic merge directives."""
        target = made
        while (
            isinstance(inner := target.get(self.draw(st.sampled_from(sorted(target) or ["x"]))), dict)
            and inner
        ):
            target = inner
        key = self.draw(
            st.sampled_from(
                [
                    "$patch",
                    "$retainKeys",
                    "$setElementOrder/containers",
                    "$deleteFromPrimitiveList/finalizers",
                ]
            )
        )
        words = st.sampled_from(["replace", "delete", "merge", "nonsense", 1, None])
        lists = st.sampled_from([[], ["a"], [{"name": "a"}], "a", [1], None])
        target[key] = self.draw(words if key == "$patch" else lists)

    def operations(self, operation: ApiOperation) -> Json:
        pointers = list(_pointers(SAMPLES.get(operation.kind, {"metadata": {}})))
        pointers += [
            "",
            "/",
            "/metadata/labels",
            "/metadata/labels/a",
            "/spec/none/x",
            "/metadata/finalizers/-",
            "a",
            "/~2",
        ]
        pointers += [
            "/metadata/name",
            "/metadata/resourceVersion",
            "/kind",
            "/spec/containers/99",
            "/spec/containers/-1",
        ]
        made = []
        for _ in range(self.draw(st.integers(1, 3))):
            one = {
                "op": self.draw(
                    st.sampled_from(["add", "replace", "remove", "test", "move", "copy", "boil"])
                ),
                "path": self.draw(st.sampled_from(pointers)),
                "value": self.draw(ANYTHING),
                "from": self.draw(st.sampled_from(pointers)),
            }
            if self.chance(10):
                one.pop(self.draw(st.sampled_from(sorted(one))))
            made.append(one)
        return made


def _pointers(value: Json, at: str = "") -> Iterator[str]:
    if at:
        yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _pointers(inner, f"{at}/{str(key).replace('~', '~0').replace('/', '~1')}")
