"""Random input gives an object or an error of the API, never an internal error."""

import asyncio
import contextlib
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from volplane.api import codec, kinds
from volplane.api.core import PersistentVolumeClaim, Pod, ServiceAccount
from volplane.api.errors import APIError, BadRequest
from volplane.api.object import Field, Object, schema
from volplane.apiserver import decode, patch, strategies, tables
from volplane.apiserver.strategy import ApiCall, RequestUser

TEXTS = (
    "",
    "a",
    "A b",
    "x/y",
    "../z",
    "1Gi",
    "-5",
    "50%",
    "2026-01-02T03:04:05Z",
    "ReadWriteOnce",
    "Always",
    "é",
)
ODD: tuple[Any, ...] = (None, True, -1, 0, 7, 1 << 40, 1.5, "x", [], {}, [None], {"a": None})


def value(dice: random.Random, field: Field, depth: int) -> Any:
    if dice.random() < 0.02:
        return dice.choice(ODD)
    if field.format == "quantity":
        return dice.choice(("1Gi", "0", "-1", "100m", 5, "1e3"))
    if field.format in ("date-time", "micro-time"):
        return dice.choice(("2026-01-02T03:04:05Z", "2026-01-02T03:04:05.123456Z", None))
    if field.type is not None:
        return document(dice, field.type, depth - 1)
    if field.item is not None:
        count = dice.randrange(3) if depth > 0 else 0
        items = [value(dice, field.item, depth - 1) for _ in range(count)]
        return items if field.shape == "list" else {dice.choice(TEXTS): item for item in items}
    made: dict[str, Callable[[], Any]] = {
        "string": lambda: dice.choice(TEXTS),
        "integer": lambda: dice.choice((-1, 0, 1, 80, 1 << 31)),
        "number": lambda: 0.5,
        "boolean": lambda: dice.random() < 0.5,
        "bytes": lambda: "YQ==",
        "any": lambda: dice.choice((1, "a", "25%")),
    }
    return made[field.shape]()


def document(dice: random.Random, of: type[Object], depth: int) -> dict[str, Any]:
    if depth < 0:
        return {}
    chosen = [f for f in schema(of).values() if dice.random() < 0.35]
    return {field.name: value(dice, field, depth) for field in chosen}


class EmptyReader:
    async def get(self, type: Any, name: str, namespace: str = "") -> Any:
        return ServiceAccount() if type is ServiceAccount else None

    async def list(self, type: Any, namespace: str = "") -> Any:
        return []


def call(kind: kinds.Kind) -> ApiCall:
    return ApiCall(
        "create", kind, RequestUser("u"), EmptyReader(), datetime(2026, 1, 1, tzinfo=UTC), "default", "x"
    )


async def write_object(kind: kinds.Kind, body: bytes) -> Any:
    """What the verbs do with a body, in their order."""
    rules = strategies.of(kind)
    obj, _ = decode.decode_body(kind, body, "application/json", "Warn")
    obj = await rules.admit_create(call(kind), rules.defaults(obj))
    obj = rules.prepare_create(call(kind), obj)
    list(rules.validate_create(call(kind), obj))
    return obj


def kept_members(dice: random.Random, stored: Any) -> dict[str, Any]:
    """Some members of a stored object, as an update that left them alone has them."""
    return {name: getattr(stored, name) for name in stored.__struct_fields__ if dice.random() < 0.5}


STORED = [k for k in kinds.ALL if "update" in k.verbs and k.type is not None]


@pytest.mark.parametrize("kind", STORED, ids=lambda k: k.resource)
def test_random_objects_are_accepted_or_rejected(kind: kinds.Kind) -> None:
    assert kind.type is not None
    asyncio.run(_judge(kind, random.Random(kind.resource)))


async def _judge(kind: kinds.Kind, dice: random.Random) -> None:
    assert kind.type is not None
    rules = strategies.of(kind)
    held: list[Any] = []
    for _ in range(60):
        body = msgspec.json.encode(document(dice, kind.type, depth=dice.randrange(2, 9)))
        try:
            obj = await write_object(kind, body)
        except APIError:
            continue
        held.append(obj)
        assert rules.defaults(obj) == obj
        # What is stored reads back as the same object.
        assert codec.decode(kind.type, codec.encode(obj)) == obj
        other = dice.choice(held)
        updated = msgspec.structs.replace(obj, **kept_members(dice, other))
        assert rules.defaults(updated, other) == rules.defaults(updated)
        list(rules.validate_update(call(kind), other, rules.prepare_update(call(kind), other, obj)))
        if rules.kind.has_status:
            list(rules.validate_status(call(kind), other, rules.prepare_status(call(kind), other, obj)))
    assert held
    msgspec.json.encode(tables.render(kind, held, "Object"))


@pytest.mark.parametrize("media", [patch.JSON, patch.MERGE, patch.STRATEGIC])
def test_random_patches_are_accepted_or_rejected(media: str) -> None:
    dice = random.Random(media)
    kind = kinds.of(Pod)
    for _ in range(400):
        current = document(dice, Pod, depth=6)
        change: Any = document(dice, Pod, depth=6)
        if media == patch.JSON:
            path = dice.choice(("/spec", "/spec/containers/0", "/metadata/labels/a", "", "/", "x", "/spec/-"))
            word = dice.choice(("add", "remove", "replace", "test", "copy", "move", "else"))
            change = [{"op": word, "path": path, "from": "/metadata", "value": change}]
        elif dice.random() < 0.5:
            where = change.setdefault("spec", {})
            if isinstance(where, dict):
                where[
                    dice.choice(("$patch", "$retainKeys", "$setElementOrder/containers", "$setElementOrder"))
                ] = dice.choice(("replace", "delete", ["containers"], [{"name": "a"}], None))
        try:
            result = patch.apply_patch(kind, media, current, msgspec.json.encode(change))
            decode.convert_patched(kind, result)
        except APIError:
            continue


@pytest.mark.parametrize("opening", [b'{"metadata":{"labels":', b'{"spec":{"affinity":', b'{"a":', b"["])
@pytest.mark.parametrize("depth", [100, 400, 900, 5000])
def test_deep_bodies(opening: bytes, depth: int) -> None:
    body = opening * depth + b"1" + (b"}" * opening.count(b"{") if opening != b"[" else b"]") * depth
    kind = kinds.of(Pod)
    for media in (patch.MERGE, patch.STRATEGIC, patch.JSON):
        with contextlib.suppress(APIError):
            decode.convert_patched(kind, patch.apply_patch(kind, media, {"spec": {}, "a": {"a": {}}}, body))
    with contextlib.suppress(APIError):
        decode.decode_body(kind, body, "application/json")


def test_huge_quantities_are_rejected_quickly() -> None:
    for amount in ("1e999999999", "1E-999999999", "9" * 10_000):
        data = {"spec": {"resources": {"requests": {"storage": amount}}}}
        with pytest.raises(BadRequest, match="quantities must match"):
            decode.decode_body(kinds.of(PersistentVolumeClaim), msgspec.json.encode(data), "")
