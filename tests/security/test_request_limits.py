"""Hostile requests at the documented limits: none takes much memory, and none blocks the event loop.

Every case is sent to a real server on SQLite whose loop is measured. What counts is the CPU time that the
loop's thread spends in one callback (see `tests.support.event_loop_probe`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.event_loop_probe import Answer, MeasuredServer, resident
from volplane.base import memory
from volplane.cloud.filters import matches_pattern
from volplane.store.memory import MemoryStore
from volplane.store.sqlite import SqliteStore

LONGEST = 0.05  # seconds of CPU time in one callback
GROWTH = 256 << 20  # bytes of memory
BODY = 3 * 1024 * 1024
NAMESPACE = "/api/v1/namespaces/default/"
MAPS, PODS = f"{NAMESPACE}configmaps", f"{NAMESPACE}pods"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
JSON_PATCH, MERGE = "application/json-patch+json", "application/merge-patch+json"
STRATEGIC, APPLY = "application/strategic-merge-patch+json", "application/apply-patch+yaml"
YAML = "application/yaml"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeasuredServer]:
    directory = tmp_path_factory.mktemp("limits")
    memory.tune_garbage_collector()  # as `volplane` does
    with MeasuredServer(directory, lambda: SqliteStore.open(directory / "state.db")) as running:
        assert running.request("POST", f"{NAMESPACE}serviceaccounts", with_name("default")).status == 201
        assert running.request("POST", MAPS, {**with_name("small"), "data": {"a": "b"}}).status == 201
        assert running.request("POST", MAPS, {**with_name("large"), "data": many(20_000)}).status == 201
        assert running.request("POST", PODS, pod("large", containers(1000))).status == 201
        running.request("GET", MAPS)
        yield running


def with_name(name: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **more}}


def many(count: int) -> dict[str, str]:
    return {f"k{number}": "v" for number in range(count)}


def containers(count: int, **more: Any) -> list[Any]:
    return [{"name": f"c{number}", "image": "i", **more} for number in range(count)]


def pod(name: str, of: list[Any], **more: Any) -> dict[str, Any]:
    return {**with_name(name), "spec": {"containers": of, **more}}


def request_measured(server: MeasuredServer, *asked: Any, **more: Any) -> Answer:
    """The answer to a request that neither stalled the loop nor took memory."""
    server.probe.take()
    before = resident()
    answer = server.request(*asked, **more)
    server.request("GET", "/livez")  # the last callback of the request has ended
    longest, culprit = server.probe.take()
    assert longest < LONGEST, f"{longest * 1000:.0f} ms in {culprit}"
    assert resident() - before < GROWTH
    return answer


def test_a_copy_bomb_is_refused_before_it_grows(server: MeasuredServer) -> None:
    """Three kilobytes that would make 2 to the power of 40 copies of a value."""
    bomb: list[Any] = [{"op": "add", "path": "/data", "value": {"a": "x" * 1000}}]
    bomb += [{"op": "copy", "from": "/data", "path": f"/data/c{number}"} for number in range(40)]
    got = request_measured(server, "PATCH", f"{MAPS}/small", bomb, type=JSON_PATCH)
    assert (got.status, got.json["reason"]) == (413, "RequestEntityTooLarge")
    assert "the accumulated size increase of copy is" in got.json["message"]


def test_copies_within_the_limit_are_made(server: MeasuredServer) -> None:
    bomb = [{"op": "copy", "from": "/data/a", "path": f"/data/c{number}"} for number in range(100)]
    got = request_measured(server, "PATCH", f"{MAPS}/small?dryRun=All", bomb, type=JSON_PATCH)
    assert got.status == 200
    assert got.json["data"]["c99"] == "b"


@pytest.mark.parametrize("store", ["sqlite", "memory"])
def test_an_object_is_as_large_as_etcd_takes_it(tmp_path: Path, store: str) -> None:
    async def open_store() -> Any:
        return MemoryStore() if store == "memory" else await SqliteStore.open(tmp_path / "state.db")

    lease = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    with MeasuredServer(tmp_path, open_store) as server:
        most = {**with_name("fits"), "spec": {"holderIdentity": "x" * 1_560_000}}
        assert server.request("POST", lease, most).status == 201
        more = {**with_name("larger"), "spec": {"holderIdentity": "x" * 1_580_000}}
        for asked in (
            server.request("POST", lease, more),
            server.request("POST", f"{lease}?dryRun=All", more),
            server.request("PATCH", f"{lease}/fits", {"spec": more["spec"]}, type=MERGE),
        ):
            assert (asked.status, asked.json["reason"]) == (413, "RequestEntityTooLarge")
            assert asked.json["message"].startswith("Request entity too large: limit is ")
        smaller = server.request("PATCH", f"{lease}/fits", {"spec": {"holderIdentity": "x"}}, type=MERGE)
        assert smaller.status == 200


def fill_body(unit: bytes, head: bytes, tail: bytes, size: int = BODY - 100) -> bytes:
    return head + b",".join([unit] * ((size - len(head) - len(tail)) // (len(unit) + 1))) + tail


HEAD = b'{"metadata":{"name":"x"},"data":'
BOMB = b"a: &a [x, x]\n" + b"".join(  # YAML that grows eightfold with every line
    b"%c: &%c [%b]\n" % (n + 1, n + 1, b", ".join([b"*%c" % n] * 8)) for n in range(97, 110)
)
MERGES = b"a: &a {k: v}\n" + b"".join(
    b"%c: &%c {<<: [%b]}\n" % (n + 1, n + 1, b", ".join([b"*%c" % n] * 8)) for n in range(97, 110)
)
BODIES: dict[str, tuple[str, bytes, int]] = {
    "a million empty lists": ("application/json", fill_body(b"[]", HEAD + b"[", b"]}"), 413),
    "a million members": ("application/json", fill_body(b'"a":0', HEAD + b"{", b"}}"), 413),
    "many members": ("application/json", fill_body(b'"a":"b"', HEAD + b"{", b"}}", 1_500_000), 201),
    "text full of signs": ("application/json", fill_body(b"[{", HEAD + b'{"a":"', b'"}}', 1_000_000), 201),
    "deep JSON": ("application/json", b'{"a":' * 150_000, 400),
    "deep YAML lists": (YAML, b"- " * 1_000_000, 400),
    "deep YAML keys": (YAML, b"? " * 1_000_000, 400),
    "deep YAML brackets": (YAML, b"[" * 3_000_000, 400),
    "aliases of aliases": (YAML, BOMB, 400),
    "merges of merges": (YAML, MERGES, 400),
    "an alias inside of itself": (YAML, b"a: &a [*a]", 400),
    "large YAML": (YAML, b"- a\n" * 150_000, 400),
    "larger YAML": (YAML, b"- a\n" * 700_000, 413),
    "a number of a million digits": ("application/json", HEAD + b"9" * 1_000_000 + b"}", 400),
    "an endless exponent": ("application/json", HEAD + b"1e999999999}", 400),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_stalls_nobody(server: MeasuredServer, name: str) -> None:
    media, body, status = BODIES[name]
    got = request_measured(server, "POST", f"{MAPS}?dryRun=All", body, type=media)
    assert got.status == status, got.body[-300:]


@pytest.mark.parametrize("name", ["aliases of aliases", "deep YAML lists", "merges of merges"])
def test_an_applied_configuration_stalls_nobody(server: MeasuredServer, name: str) -> None:
    got = request_measured(server, "PATCH", f"{MAPS}/small?fieldManager=x", BODIES[name][1], type=APPLY)
    assert got.status == 400, got.body


def test_yaml_means_what_it_meant(server: MeasuredServer) -> None:
    text = """
metadata: &m {name: yaml, labels: {one: "1"}}
data:
  <<: [{a: first, b: first}, {a: second, c: second}]
  b: own
  time: 2026-01-02
"""
    got = request_measured(server, "POST", f"{MAPS}?dryRun=All", text.encode(), type=YAML)
    assert got.status == 201, got.body
    assert got.json["data"] == {"a": "first", "b": "own", "c": "second", "time": "2026-01-02"}


ENVIRONMENT = [{"name": f"E{number}", "value": "x"} for number in range(10_000)]
FINALIZERS = [f"example.com/f{number}" for number in range(20_000)]
OWNERS = {
    "manager": "m",
    "operation": "Update",
    "apiVersion": "v1",
    "fieldsType": "FieldsV1",
    "fieldsV1": {"f:data": {f"f:k{number}": {} for number in range(50_000)}},
}
HOSTILE: dict[str, tuple[str, str, Any, str]] = {
    "members": ("POST", MAPS, {**with_name("n"), "data": many(90_000)}, "application/json"),
    "labels": ("POST", MAPS, with_name("n", labels=many(60_000)), "application/json"),
    "unknown fields": ("POST", MAPS, {**with_name("n"), **many(150_000)}, "application/json"),
    "finalizers": ("POST", MAPS, with_name("n", finalizers=FINALIZERS), "application/json"),
    "owners of fields": (
        "PUT",
        f"{MAPS}/small",
        with_name("small", managedFields=[OWNERS]),
        "application/json",
    ),
    "containers": ("POST", PODS, pod("n", containers(20_000)), "application/json"),
    "containers of one name": ("POST", PODS, pod("n", [{"name": "c"}] * 30_000), "application/json"),
    "environment": ("POST", PODS, pod("n", containers(1, env=ENVIRONMENT)), "application/json"),
    "merged containers": ("PATCH", f"{PODS}/large", pod("large", containers(10_000)), STRATEGIC),
    "merged finalizers": ("PATCH", f"{PODS}/large", with_name("large", finalizers=FINALIZERS), STRATEGIC),
    "a change of a large object": ("PATCH", f"{MAPS}/large", {"data": {"k1": "w"}}, MERGE),
    "an operation on a large object": (
        "PATCH", f"{MAPS}/large", [{"op": "add", "path": "/data/k1", "value": "x"}] * 10_000, JSON_PATCH
    ),
    "applied containers": (
        "PATCH", f"{PODS}/large?fieldManager=x&force=true",
        {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": containers(5_000)}}, APPLY,
    ),
    "a long duration": (
        "POST", "/apis/batch/v1/namespaces/default/cronjobs",
        {**with_name("n"), "spec": {"schedule": "@every " + "1" * 12_000}}, "application/json",
    ),
    "a token of many parts": (
        "POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": "a." * 1_000_000}},
        "application/json",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_large_object_stalls_nobody(server: MeasuredServer, name: str) -> None:
    method, path, body, media = HOSTILE[name]
    joint = "&" if "?" in path else "?"
    got = request_measured(
        server, method, f"{path}{joint}dryRun=All" if "review" not in path else path, body, type=media
    )
    assert got.status < 500, got.body[-300:]


def test_an_answer_lists_a_thousand_errors_and_counts_the_rest(server: MeasuredServer) -> None:
    body = pod("n", [{"name": "c", "image": "i"}] * 3000)
    got = request_measured(server, "POST", f"{PODS}?dryRun=All", body)
    assert got.status == 422
    assert len(got.json["details"]["causes"]) == 1000
    assert got.json["message"].endswith('Duplicate value: "c", and 1999 more]')


@pytest.mark.parametrize(
    "query",
    [
        "labelSelector=" + quote("a in (" + ",".join(f"v{n}" for n in range(8000)) + ")", safe="(),"),
        "labelSelector=" + ",".join(f"!v{n}" for n in range(8000)),
        "fieldSelector=" + ",".join(f"metadata.name!=v{n}" for n in range(2500)),
        "labelSelector=a%3E" + "9" * 50_000,
        "limit=1&continue=" + "A" * 60_000,
        "limit=" + "9" * 60_000,
    ],
)
def test_a_question_stalls_nobody(server: MeasuredServer, query: str) -> None:
    assert request_measured(server, "GET", f"{MAPS}?{query}").status < 500


def test_many_unknown_fields_are_told_in_few_warnings(server: MeasuredServer) -> None:
    """Each warning is a header, and Python's own HTTP client refuses more than a hundred."""
    got = request_measured(server, "POST", f"{MAPS}?dryRun=All", {**with_name("n"), **many(1000)})
    assert got.status == 201


@pytest.mark.parametrize("form", ["application/yaml", "application/json;as=Table;v=v1;g=meta.k8s.io"])
def test_a_long_list_is_made_in_turns(server: MeasuredServer, form: str) -> None:
    for number in range(300):
        server.request("POST", f"{NAMESPACE}limitranges", with_name(f"l{number}"))
    assert request_measured(server, "GET", f"{NAMESPACE}limitranges", accept=form).status == 200


# Custom resources


def definition(plural: str, spec: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"spec": {"type": "object", **spec}}}
    kind = plural.capitalize()
    return {
        **with_name(f"{plural}.limits.example.com"),
        "spec": {
            "group": "limits.example.com",
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": plural, "listKind": f"{kind}List"},
            "versions": [
                {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
            ],
        },
    }


def define_kind(server: MeasuredServer, plural: str, spec: Any) -> str:
    """The path of a new kind, which is served when its definition is answered."""
    got = request_measured(server, "POST", DEFINITIONS, definition(plural, spec))
    assert got.status == 201, got.body
    return f"/apis/limits.example.com/v1/namespaces/default/{plural}"


def instance(plural: str, spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "limits.example.com/v1",
        "kind": plural.capitalize(),
        **with_name("x"),
        "spec": spec,
    }


def test_a_definition_with_ten_thousand_fields_stalls_nobody(server: MeasuredServer) -> None:
    path = define_kind(server, "wides", {"properties": {f"p{n}": {"type": "string"} for n in range(10_000)}})
    got = request_measured(server, "POST", path, instance("wides", {f"p{n}": "v" for n in range(10_000)}))
    assert got.status == 201
    assert request_measured(server, "GET", "/openapi/v2").status == 200


PATTERNS = [
    ("^(a+)+$", "a" * 40 + "!"),
    ("^(a|aa)*b$", "a" * 1_000_000),
    ("(x+x+)+y", "x" * 12_000),
    ("((a|b)*a(a|b){300}){3}c", "abbab" * 3000),  # RE2 at its slowest
    ("((a|b)*a(a|b){300}){3}c", "abbab" * 40_000),
]


@pytest.mark.parametrize("case", range(len(PATTERNS)))
def test_a_pattern_that_backtracks_elsewhere_stalls_nobody(server: MeasuredServer, case: int) -> None:
    pattern, text = PATTERNS[case]
    plural = f"patterns{case}"
    path = define_kind(server, plural, {"properties": {"t": {"type": "string", "pattern": pattern}}})
    got = request_measured(server, "POST", path, instance(plural, {"t": text}))
    assert got.status == 422
    assert f"should match '{pattern}'" in got.json["message"]


EXPENSIVE_RULES = {  # with the most characters and the most items for which such a rule may be defined
    "loops": ("self.l.all(a, self.l.all(b, self.l.all(c, a + b + c >= 0)))", 15_000, 100),
    "grows": ("self.s.replace('a', self.s).replace('a', self.s) != ''", 1700, 100),
    "joins": ("self.t.join(self.s).size() >= 0", 12_000, 1000),
    "matches": ("self.s.matches(self.s)", 4900, 100),
}
CHEAP_RULES = {
    "finds": "self.s.findAll('a|b').size() >= 0",
    "counts": "int(self.s) > 0",
    "lasts": "duration(self.s) > duration('1s')",
}


def fields_with_rule(rule: str, length: int, items: int) -> dict[str, Any]:
    text = {"type": "string", "maxLength": length}
    fields = {
        "l": {"type": "array", "items": {"type": "integer"}, "maxItems": items},
        "t": {"type": "array", "items": text, "maxItems": items},
        "s": text,
    }
    return {"properties": fields, "x-kubernetes-validations": [{"rule": rule}]}


@pytest.mark.parametrize(
    ("name", "rule", "length", "items"),
    [
        *((name, *bounded) for name, bounded in EXPENSIVE_RULES.items()),
        *((name, rule, length, 1000) for name, rule in CHEAP_RULES.items() for length in (15_000, 1_000_000)),
    ],
)
def test_a_validation_rule_stalls_nobody(
    server: MeasuredServer, name: str, rule: str, length: int, items: int
) -> None:
    plural = f"{name}{length}"
    path = define_kind(server, plural, fields_with_rule(rule, length, items))
    for sign in "a1":
        spec = {"l": list(range(min(items, 100))), "t": ["a"] * items, "s": sign * length}
        got = request_measured(server, "POST", path, instance(plural, spec))
        assert got.status in (201, 409, 422), got.body
        refused = [text for text in (b"must be no more than", b"Too long") if text in got.body]
        assert not refused, "the rule did not run"


@pytest.mark.parametrize("name", EXPENSIVE_RULES)
def test_a_rule_for_values_that_are_too_large_is_refused(server: MeasuredServer, name: str) -> None:
    rule, length, items = EXPENSIVE_RULES[name]
    wanted = definition(f"refused{name}", fields_with_rule(rule, length * 2, items * 2))
    got = request_measured(server, "POST", DEFINITIONS, wanted)
    assert got.status == 422
    assert "estimated rule cost exceeds budget" in got.json["message"]


@pytest.mark.parametrize("format", ["duration", "email", "byte", "ipv4", "cidr", "isbn", "uri", "date-time"])
def test_a_format_stalls_nobody(server: MeasuredServer, format: str) -> None:
    plural = f"f{format.replace('-', '')}s"
    path = define_kind(server, plural, {"properties": {"s": {"type": "string", "format": format}}})
    for text in ("1" * 12_000, "1" * 1_000_000, "a@" * 6000, " " * 12_000 + "1", "1.1." * 3000):
        got = request_measured(server, "POST", path, instance(plural, {"s": text}))
        assert got.status in (201, 409, 422), got.body[-300:]


def test_a_filter_of_many_stars_takes_no_time_at_all() -> None:
    """The disk service's wildcards; as a regular expression this would take years."""
    began = time.thread_time()
    assert not matches_pattern("*a" * 200 + "b", "a" * 5000)
    assert matches_pattern("*a*b?", "xxaxxbz")
    assert not matches_pattern("?", "")
    assert time.thread_time() - began < LONGEST * 20


def test_how_late_the_loop_is_can_be_seen(server: MeasuredServer) -> None:
    deadline = time.monotonic() + 60
    while b"event_loop_lag_seconds_count 0" in (reported := server.request("GET", "/metrics").body):
        assert time.monotonic() < deadline
    assert b"event_loop_lag_seconds_bucket" in reported
