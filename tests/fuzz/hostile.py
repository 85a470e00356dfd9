"""Hostile requests: wrong types, odd names and headers, long numbers, bodies at the limits.

They are generated from a seed and from small samples of every kind in discovery. Unlike the request sequences
made from OpenAPI (see `requests`), they are stateless: each must get a 4xx, without stalling the server's
event loop or growing its memory.
"""

# ruff: noqa: E501, RUF001 - values that are read as tables, one of them in other digits

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import yaml
from msgspec import Struct

from tests.fuzz.samples import SAMPLES
from tests.fuzz.values import BOMB, DEEP, LONG

Json = Any

JSON, YAML, PROTOBUF = "application/json", "application/yaml", "application/vnd.kubernetes.protobuf"
JSON_PATCH, MERGE = "application/json-patch+json", "application/merge-patch+json"
STRATEGIC, APPLY = "application/strategic-merge-patch+json", "application/apply-patch+yaml"
PATCHES = (JSON_PATCH, MERGE, STRATEGIC, APPLY)
STREAMS = frozenset(
    {"exec", "attach", "portforward", "proxy", "log"}
)  # served by nodes, which do not exist here
NAMES = ("a",) * 12 + ("b", "b", "default", "kube-system", "worker-1")
ODD_NAMES = (
    "", ".", "..", "%2e%2e", "A_b", "a/b", "a%2Fb", "ü", "a\x00b", "-", "a?b", "a b", "😀", "*", "%", "%zz",
    "a" * 300, "a#b", "a;b", "\u202e", "a\r\nb", "{name}", "~", "null",
)  # fmt: skip
SCALARS: tuple[Json, ...] = (
    None, True, False, 0, 1, -1, 80, 65536, 2**31, -(2**31) - 1, 2**63 - 1, 2**63, -(2**63) - 1, 10**30,
    0.5, -0.0, 1e308, 3.0, "", "a", "1", "-1", "1Gi", "1e10000000", "1e-10000000", "9" * 500, "9" * 5000 + "Gi",
    "0x10", "1_000", "١", "50%", "9" * 5000 + "%", "2026-01-02T03:04:05Z", "99999-99-99T00:00:00Z",
    "0000-00-00T00:00:00Z", "*/5 * * * *", "@every 1h", "@every " + "1" * 5000, "a" * 70_000, "\x00",
    "\ud7ff\uffff", "👩‍👩‍👧", "../../etc", "$(X)", "a=b", "{", "[", "kubernetes.io/x", "system:masters", "Always",
)  # fmt: skip
SHAPES: tuple[Json, ...] = (
    [], {}, [[]], [{}], [None], {"": ""}, {"a": None}, {"name": []}, [1, "a", None, {}], {"a": {"b": {"c": []}}},
    ["a", "a"], [{"name": "a"}, {"name": "a"}], {"$patch": "replace"}, {"a" * 300: "b"}, {"ü": "ü"},
)  # fmt: skip
QUERY: dict[str, tuple[str, ...]] = {
    "limit": ("0", "1", "-1", "x", "99999999999999999999", LONG, "1.5"),
    "continue": ("x", "AAAA", "%", "=" * 40, "eyJ2IjoibWV0YS5rOHMuaW8vdjEifQ", "A" * 5000),
    "resourceVersion": ("0", "1", "-1", "x", LONG, "99999999999999999999"),
    "resourceVersionMatch": ("Exact", "NotOlderThan", "Nonsense"),
    "labelSelector": (
        "a=b",
        "a in (",
        "a>" + LONG,
        "(" * 500,
        "!" * 500,
        "ü=1",
        ",",
        "a=b," * 500,
        "a in (b,c)",
    ),
    "fieldSelector": ("metadata.name=a", "x=", "\\", "=" * 500, "metadata.name=a," * 500, "spec.nodeName=a"),
    "dryRun": ("All", "None", ""),
    "fieldManager": ("me", "x" * 500, "a\nb", "ü", "\x00"),
    "fieldValidation": ("Strict", "Warn", "Ignore", "Loud"),
    "force": ("true", "false", "maybe"),
    "propagationPolicy": ("Orphan", "Foreground", "Background", "Upwards"),
    "gracePeriodSeconds": ("0", "-1", "x", LONG, "99999999999999999999"),
    "includeObject": ("None", "Object", "Metadata", "x"),
    "pretty": ("true", "x"),
    "hash": ("x", LONG),
    "verbose": ("", "x"),
    "exclude": ("etcd", "x" * 500),
}
HEADERS: dict[str, tuple[str, ...]] = {
    "accept": (
        JSON, YAML, PROTOBUF, "*/*", "text/html", ";;;", "a/b/c,,", "application/json;q=nan", "application/json;q=" + LONG,
        "application/json;as=Table;v=v1;g=meta.k8s.io", "application/json;as=Table;v=v9;g=meta.k8s.io",
        "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "application/yaml;as=Table;v=v1;g=meta.k8s.io",
        "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", ",".join(["a/b;q=0.1"] * 2000),
    ),
    "accept-encoding": ("gzip", "br", "gzip;q=0", "x" * 2000),
    "content-encoding": ("gzip", "br"),
    "user-agent": ("", "x" * 9000, "a\tb", "ü/1"),
    "authorization": ("Bearer ", "Bearer " + "a." * 9000, "Basic x", "Bearer " + "W1tb" * 900 + ".e30.AA", "x"),
    "impersonate-user": ("", "somebody", "system:serviceaccount:a:b", "x" * 9000),
    "impersonate-group": ("a",),
    "if-none-match": ('"x"', LONG),
    "kubectl-command": ("x" * 500,),
    "audit-id": ("x" * 5000, "ü"),
    "x-forwarded-for": ("1.2.3.4",),
    "upgrade": ("websocket", "SPDY/3.1", "h2c"),
}  # fmt: skip
BOOTSTRAP = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system"},
    "type": "bootstrap.kubernetes.io/token",
    "stringData": {
        "token-id": "abcdef",
        "token-secret": "0123456789abcdef",
        "expiration": "2030-01-01T00:00:00Z",
        "usage-bootstrap-authentication": "true",
        "auth-extra-groups": "system:bootstrappers:a,system:bootstrappers:b",
    },
}
EXTRA: dict[str, tuple[Json, ...]] = {
    "Secret": (BOOTSTRAP,),
    "TokenRequest": ({"spec": {"audiences": ["a"], "expirationSeconds": 3600, "boundObjectRef": {"kind": "Pod", "name": "a", "uid": "x"}}},),
    "TokenReview": ({"spec": {"token": "a.b.c", "audiences": ["x"]}},),
    "SubjectAccessReview": (
        {"spec": {"user": "a", "groups": ["b"], "extra": {"c": ["d"]}, "resourceAttributes": {"verb": "get", "resource": "pods", "fieldSelector": {"rawSelector": "a=b"}, "labelSelector": {"requirements": [{"key": "a", "operator": "In", "values": ["b"]}]}}}},
        {"spec": {"user": "a", "nonResourceAttributes": {"path": "/x", "verb": "get"}}},
    ),
    "SelfSubjectAccessReview": ({"spec": {"resourceAttributes": {"verb": "*", "group": "*", "resource": "*"}}},),
    "LocalSubjectAccessReview": ({"metadata": {"namespace": "default"}, "spec": {"user": "a", "resourceAttributes": {"namespace": "default", "verb": "get"}}},),
    "SelfSubjectRulesReview": ({"spec": {"namespace": "default"}},),
    "SelfSubjectReview": ({},),
    "Eviction": ({"metadata": {"name": "a"}, "deleteOptions": {"gracePeriodSeconds": 0, "preconditions": {"uid": "x", "resourceVersion": "y"}}},),
    "Binding": ({"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "worker-1"}},),
    "Scale": ({"metadata": {"name": "a"}, "spec": {"replicas": 2}},),
    "CertificateSigningRequest": (
        {"spec": {"request": "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0=", "signerName": "kubernetes.io/kube-apiserver-client-kubelet", "usages": ["client auth"], "expirationSeconds": 600, "username": "x"}},
    ),
    "ResourceQuota": ({"spec": {"hard": {"requests.storage": "1Gi", "pods": "5"}, "scopes": ["NotTerminating"]}},),
    "LimitRange": ({"spec": {"limits": [{"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}, "min": {"storage": "1"}, "default": {"cpu": "1"}}]}},),
    "ClusterRole": ({"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "resourceNames": ["a"]}], "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}},),
    "RoleBinding": ({"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "a"}, "subjects": [{"kind": "User", "name": "a", "apiGroup": "rbac.authorization.k8s.io"}]},),
    "CustomResourceDefinition": (
        {
            "metadata": {"name": "hostiles.fuzz.example.com"},
            "spec": {
                "group": "fuzz.example.com", "scope": "Namespaced",
                "names": {"kind": "Hostile", "plural": "hostiles", "singular": "hostile", "listKind": "HostileList"},
                "versions": [{
                    "name": "v1", "served": True, "storage": True,
                    "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.n", "statusReplicasPath": ".status.n"}},
                    "additionalPrinterColumns": [{"name": "N", "type": "integer", "jsonPath": ".spec.n"}],
                    "selectableFields": [{"jsonPath": ".spec.t"}],
                    "schema": {"openAPIV3Schema": {
                        "type": "object",
                        "properties": {"spec": {
                            "type": "object",
                            "properties": {
                                "n": {"type": "integer", "default": 3, "minimum": 1, "multipleOf": 2, "format": "int32"},
                                "t": {"type": "string", "pattern": "^a+$", "maxLength": 5, "enum": ["a", "aa"]},
                                "l": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}}}},
                            },
                            "x-kubernetes-validations": [{"rule": "self.n > 0", "message": "m", "messageExpression": "'x' + string(self.n)", "fieldPath": ".n", "reason": "FieldValueInvalid"}],
                        }},
                    }},
                }],
            },
        },
    ),
}  # fmt: skip
MANAGED = {
    "manager": "m",
    "operation": "Apply",
    "apiVersion": "v1",
    "fieldsType": "FieldsV1",
    "fieldsV1": {"f:data": {"f:a": {}, ".": {}}},
}
METADATA: tuple[tuple[str, Json], ...] = (
    ("resourceVersion", "1"), ("resourceVersion", "x"), ("resourceVersion", LONG), ("resourceVersion", 5),
    ("uid", "x"), ("generation", 2**62), ("generateName", "x" * 300), ("namespace", "other"), ("namespace", "A_"),
    ("labels", {"a b": "c d"}), ("labels", {"a": 1}), ("annotations", {"a": "x" * 300_000}), ("finalizers", ["x", "x", ""]),
    ("ownerReferences", [{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "x", "controller": True}] * 2),
    ("deletionTimestamp", "2020-01-01T00:00:00Z"), ("creationTimestamp", "x"), ("selfLink", "x"),
    ("managedFields", [{}]), ("managedFields", [MANAGED]), ("managedFields", [{**MANAGED, "fieldsV1": {"f:": {"k:{": {}}}}]),
    ("managedFields", [{**MANAGED, "fieldsV1": {"i:" + LONG: {}}}]), ("managedFields", [{**MANAGED, "operation": "Steal"}]),
    ("managedFields", [{**MANAGED, "time": "x"}]), ("managedFields", "x"), ("managedFields", [{**MANAGED, "fieldsV1": 1}] * 3),
)  # fmt: skip
RUBBISH: tuple[bytes, ...] = (
    b"", b"{", b"[]", b"null", b"1", b'"a"', b"\xff\xfe", b'{"a":1,"a":2}', b"{}{}", b"k8s\x00", b"k8s\x00\x0a\xff",
    b"k8s\x00\x0a\x00\x12\x02\x0a\x00", b"[" * DEEP, b'{"a":' * DEEP + b"1" + b"}" * DEEP, b"- " * 50_000, b"? " * 50_000,
    b'{"metadata":{"name":"\\ud800"}}', b"- a\n- b", b"a: b: c", BOMB, b"---\n---\n", b"!!python/object:os.system {}",
    b'{"metadata": []}', b'{"spec": 1e999}', b'{"kind":"Status"}', b'{"apiVersion":1,"kind":2}', b"\xef\xbb\xbf{}",
    b"a: &a [*a]", b"a: *b", b"<<: 1", b"<<: [1]", b"{<<: {a: 1}, a: 2}", b"? {a: 1}\n: 2", b"a: !!binary x", b"a: .nan",
    b"a: !x y", b"%YAML 9.9\n---\na: 1", b"\x1f\x8b\x08\x00\x00\x00\x00\x00", b"a: 1:30:00", b"a: 0o777", b'{"a":-}',
    b'{"metadata":{"name":"a","generation":' + LONG.encode() + b"}}", b"\x00" * 100, b"{" * 3, b'{"\\u0000":"\\u0000"}',
)  # fmt: skip


class HostileEndpoint(Struct, frozen=True):
    """One resource of the server's discovery."""

    base: str  # `/api/v1`
    plural: str
    kind: str
    version: str
    namespaced: bool
    verbs: tuple[str, ...]
    below: str = ""  # its subresource


class HostileRequest(Struct):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes | None

    def __str__(self) -> str:
        shown = (self.body or b"")[:2000]
        return f"{self.method} {self.path[:500]} {str(self.headers)[:500]} {shown!r}"


def list_endpoints(get: Callable[[str], Json]) -> list[HostileEndpoint]:
    """Return all resources and subresources in discovery."""
    bases = ["/api/v1"]
    for group in get("/apis")["groups"]:
        bases += [f"/apis/{version['groupVersion']}" for version in group["versions"]]
    return [place for base in bases for place in _endpoints_of(base, get(base))]


def _endpoints_of(base: str, found: Json) -> Iterator[HostileEndpoint]:
    for resource in found["resources"]:
        plural, _, below = resource["name"].partition("/")
        group, version = resource.get("group"), resource.get("version")
        named = f"{group}/{version}" if group else version or found["groupVersion"]
        verbs = tuple(resource["verbs"])
        yield HostileEndpoint(base, plural, resource["kind"], named, resource["namespaced"], verbs, below)


class HostileRequests:
    def __init__(self, seed: int, known: list[HostileEndpoint]) -> None:
        self.random = random.Random(seed)
        self.places = [place for place in known if place.below not in STREAMS]
        self.streams = [place for place in known if place.below in STREAMS]

    def first(self) -> Iterator[HostileRequest]:
        """Create an object of every kind, so that later requests find one."""
        for place in self.places:
            if "create" in place.verbs and not place.below:
                for sample in (*EXTRA.get(place.kind, ()), SAMPLES.get(place.kind)):
                    if sample is not None:
                        made = {"apiVersion": place.version, "kind": place.kind, **copy.deepcopy(sample)}
                        made["metadata"] = {"name": "a", **made.get("metadata", {})}
                        path = self._path(place, "POST", made["metadata"].get("namespace", "default"), "")
                        yield HostileRequest("POST", path, {"content-type": JSON}, json.dumps(made).encode())

    def chance(self, percent: float) -> bool:
        return self.random.random() * 100 < percent

    def request(self) -> HostileRequest:
        if self.chance(3):
            return self._outside()
        place = self.random.choice(self.streams if self.chance(3) else self.places)
        name = self.random.choice(ODD_NAMES if self.chance(6) else NAMES)
        namespace = self.random.choice(ODD_NAMES) if self.chance(3) else "default"
        method = self._method(place)
        headers: dict[str, str] = {}
        body = self._body(place, method, name, headers)
        for header in self.random.sample(sorted(HEADERS), 1) if self.chance(12) else ():
            headers[header] = self.random.choice(HEADERS[header])
        path = self._path(place, method, namespace, name)
        return HostileRequest(method, path + self._query(method), _sendable(headers), body)

    def _outside(self) -> HostileRequest:
        where = (
            "/",
            "/version",
            "/readyz",
            "/livez/x",
            "/metrics",
            "/openapi/v2",
            "/openapi/v3",
            "/openapi/v3/x",
            "/apis",
        )
        path = self.random.choice(
            (*where, "/apis/x", "/api/v1/x", "/debug/trace?since=" + LONG, "//", "/api//v1", "/" * 500)
        )
        if path.startswith("/debug/trace"):
            return HostileRequest("GET", path, {}, None)
        headers = {"accept": self.random.choice(HEADERS["accept"])} if self.chance(50) else {}
        return HostileRequest(self.random.choice(("GET", "GET", "POST", "HEAD", "PUT")), path, headers, None)

    def _method(self, place: HostileEndpoint) -> str:
        if self.chance(3):
            return self.random.choice(("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"))
        writes = {
            "create": "POST",
            "update": "PUT",
            "patch": "PATCH",
            "delete": "DELETE",
            "get": "GET",
            "list": "GET",
        }
        known = [writes[verb] for verb in place.verbs if verb in writes] or ["GET"]
        return self.random.choice([*known, *[method for method in known if method in ("POST", "PATCH")]])

    def _path(self, place: HostileEndpoint, method: str, namespace: str, name: str) -> str:
        path = place.base
        if place.namespaced:
            path += f"/namespaces/{quote(namespace, safe='%')}"
        path += f"/{place.plural}"
        whole = method == "POST" or (method in ("GET", "DELETE") and self.chance(15))
        if place.below or not whole:
            path += f"/{quote(name, safe='%')}"
        return f"{path}/{place.below}" if place.below else path

    def _query(self, method: str) -> str:
        asked = []
        if method == "PATCH" and self.chance(90):
            asked.append(("fieldManager", "fuzz"))
        if self.chance(35):
            names = self.random.sample(sorted(QUERY), self.random.choice((1, 1, 2)))
            asked += [(name, self.random.choice(QUERY[name])) for name in names]
        return "?" + "&".join(f"{name}={quote(value)}" for name, value in asked) if asked else ""

    # Bodies

    def _body(self, place: HostileEndpoint, method: str, name: str, headers: dict[str, str]) -> bytes | None:
        if method in ("GET", "HEAD", "OPTIONS") or (method == "DELETE" and self.chance(60)):
            return None
        headers["content-type"] = self.random.choice(PATCHES) if method == "PATCH" else JSON
        if self.chance(8):
            if self.chance(50):
                headers["content-type"] = self.random.choice(
                    (JSON, YAML, PROTOBUF, *PATCHES, "x", "", "text/plain;;")
                )
            return self.random.choice(RUBBISH)
        if method == "DELETE":
            options = {
                "gracePeriodSeconds": 0,
                "preconditions": {"uid": "x"},
                "propagationPolicy": "Orphan",
                "dryRun": ["All"],
            }
            return json.dumps(self.mutate(options)).encode()
        if headers["content-type"] == JSON_PATCH:
            return json.dumps(self._operations(self.sample(place, name))).encode()
        made = self.mutate(self.sample(place, name))
        if headers["content-type"] == STRATEGIC and isinstance(made, dict) and self.chance(30):
            key = self.random.choice(
                (
                    "$patch",
                    "$retainKeys",
                    "$setElementOrder/containers",
                    "$deleteFromPrimitiveList/finalizers",
                )
            )
            self.random.choice([made, *(v for v in made.values() if isinstance(v, dict))])[key] = self.value()
        if headers["content-type"] in (APPLY, JSON) and self.chance(15):
            headers["content-type"] = APPLY if method == "PATCH" else YAML
            return yaml.safe_dump(made, allow_unicode=True).encode(errors="replace")
        return json.dumps(made).encode()

    def sample(self, place: HostileEndpoint, name: str) -> Json:
        known = [*EXTRA.get(place.kind, ()), *([SAMPLES[place.kind]] if place.kind in SAMPLES else [])]
        made = copy.deepcopy(self.random.choice(known)) if known else {"spec": {}}
        made.setdefault("apiVersion", place.version)
        made.setdefault("kind", place.kind)
        metadata = made.setdefault("metadata", {})
        if "name" not in metadata or self.chance(50):
            metadata["name"] = name
        if self.chance(15):
            field, value = self.random.choice(METADATA)
            metadata[field] = copy.deepcopy(value)
        return made

    def mutate(self, value: Json) -> Json:
        """Replace a few values by wrong ones."""
        if self.chance(2):
            return self.value()
        for _ in range(self.random.choice((0, 1, 1, 2, 3))):
            found = list(_containers(value))
            if not found:
                break
            container = self.random.choice(found)
            key = self.random.choice(
                list(container) if isinstance(container, dict) else range(len(container))
            )
            if isinstance(container, dict) and self.chance(10):
                del container[key]
            elif isinstance(container, list) and self.chance(20):
                container.extend(copy.deepcopy(container) * self.random.choice((1, 50)))
            else:
                container[key] = self.value()
        return value

    def value(self) -> Json:
        return copy.deepcopy(self.random.choice(SHAPES if self.chance(30) else SCALARS))

    def _operations(self, sample: Json) -> Json:
        pointers = [
            *_pointers(sample),
            "",
            "/",
            "/metadata/labels",
            "/metadata/labels/a",
            "a",
            "/~2",
            "/spec/x/" + LONG,
        ]
        if self.chance(5):
            grow = [
                {"op": "copy", "from": "/metadata", "path": f"/metadata/x{number}"} for number in range(40)
            ]
            return grow
        made = []
        for _ in range(self.random.randint(1, 4)):
            operation = {
                "op": self.random.choice(("add", "replace", "remove", "test", "move", "copy", "boil", 1)),
                "path": self.random.choice(pointers),
                "from": self.random.choice(pointers),
                "value": self.value(),
            }
            if self.chance(10):
                del operation[self.random.choice(sorted(operation))]
            made.append(operation)
        return self.value() if self.chance(3) else made


def _containers(value: Json) -> Iterator[Json]:
    if isinstance(value, dict | list) and value:
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _containers(inner)


def _pointers(value: Json, at: str = "") -> Iterator[str]:
    if at:
        yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _pointers(inner, f"{at}/{str(key).replace('~', '~0').replace('/', '~1')}")


def _sendable(headers: dict[str, str]) -> dict[str, str]:
    """Replace characters that a client cannot send."""
    return {name: value.encode("latin-1", "replace").decode("latin-1") for name, value in headers.items()}
