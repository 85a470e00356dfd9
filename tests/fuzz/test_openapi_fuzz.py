"""Ten thousand requests generated from the server's OpenAPI: no 5xx, well-formed errors, no lost write."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fuzz.model import PATIENCE, Model
from tests.fuzz.requests import ApiOperation, PublishedSchemas, RequestGenerator
from volplane import apiserver, web
from volplane.store.memory import MemoryStore
from volplane.web import tls

pytestmark = pytest.mark.slow

SEQUENCES, REQUESTS = 320, 32
PART = {"type": "object", "properties": {"name": {"type": "string"}}}
PARTS = {"size": {"type": "integer"}, "parts": {"type": "array", "items": PART}}
SCALE = {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"}
GADGETS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "gadgets.fuzz.example.com"},
    "spec": {
        "group": "fuzz.example.com",
        "scope": "Namespaced",
        "names": {"kind": "Gadget", "plural": "gadgets", "singular": "gadget", "listKind": "GadgetList"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}, "scale": SCALE},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {"type": "object", "properties": PARTS},
                            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                        },
                    }
                },
            }
        ],
    },
}


class FuzzRunner:
    """Runs each sequence against a new server; all servers share one set of certificates."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.sent = self.acknowledged = 0
        self.published: PublishedSchemas | None = None

    def run_sequence(self, data: st.DataObject) -> None:
        self.runner.run(self._run_sequence(data))

    async def _run_sequence(self, data: st.DataObject) -> None:
        store = MemoryStore()
        server = await apiserver.run(apiserver.ApiServerOptions(data_dir=str(self.directory)), store)
        admin = server.authority.client("client-kubernetes-admin", "kubernetes-admin", ("system:masters",))
        context = tls.client_context(
            str(server.authority.pair.cert_path), str(admin.cert_path), str(admin.key_path)
        )
        http = web.HttpClient(server.url, ssl=context)
        try:
            await _prepare(http)
            if self.published is None:
                self.published = await _fetch_schemas(http)
            generator, model = RequestGenerator(self.published, data.draw), Model(http)
            await self._requests(generator, model)
            self.acknowledged += model.acknowledged
        finally:
            await http.close()
            await server.close(0)
            await store.close()

    async def _requests(self, generator: RequestGenerator, model: Model) -> None:
        try:
            for _ in range(REQUESTS):
                request = generator.request()
                self.sent += 1
                await model.send(request)
            await model.check()
        except AssertionError as error:
            raise AssertionError("\n".join([*model.log, str(error)])) from error


async def _prepare(http: web.HttpClient) -> None:
    """Create the default service account and a custom kind."""
    headers = {"content-type": "application/json"}
    account = "/api/v1/namespaces/default/serviceaccounts"
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for path, body in ((account, {"metadata": {"name": "default"}}), (definitions, GADGETS)):
        made = await http.request("POST", path, headers=headers, body=json.dumps(body).encode())
        assert made.status == 201, made.body


async def _get(http: web.HttpClient, path: str) -> Any:
    async with asyncio.timeout(PATIENCE):
        while (got := await http.request("GET", path)).status != 200:  # noqa: ASYNC110 (there is no event to wait for)
            await asyncio.sleep(0.01)
    return json.loads(got.body)


async def _fetch_schemas(http: web.HttpClient) -> PublishedSchemas:
    await _get(http, "/apis/fuzz.example.com/v1/gadgets")
    index = {}
    async with asyncio.timeout(PATIENCE):
        while "apis/fuzz.example.com/v1" not in index:
            index = (await _get(http, "/openapi/v3"))["paths"]
            await asyncio.sleep(0.01)
    documents = [await _get(http, entry["serverRelativeURL"]) for entry in index.values()]
    extra: list[ApiOperation] = []
    for place in index:
        extra += _subresources(f"/{place}", await _get(http, f"/{place}"))
    return PublishedSchemas(documents, extra)


def _subresources(place: str, found: Any) -> Iterator[ApiOperation]:
    """Yield subresources that OpenAPI does not list, from discovery."""
    methods = {"create": "POST", "get": "GET", "update": "PUT", "patch": "PATCH", "delete": "DELETE"}
    scoped = {r["name"]: "/namespaces/{namespace}" if r["namespaced"] else "" for r in found["resources"]}
    for resource in found["resources"]:
        plural, _, below = resource["name"].partition("/")
        if below and below != "status":
            version = f"{resource['group']}/{resource['version']}" if resource.get("group") else "v1"
            path = f"{place}{scoped[plural]}/{plural}/{{name}}/{below}"
            for verb in resource["verbs"]:
                yield ApiOperation(methods[verb], path, resource["kind"], version, keeps=True)


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FuzzRunner]:
    made = FuzzRunner(tmp_path_factory.mktemp("fuzz"))
    yield made
    made.runner.close()


def test_ten_thousand_requests_break_nothing_and_lose_nothing(fuzzed: FuzzRunner) -> None:
    @settings(
        max_examples=SEQUENCES,
        derandomize=True,
        deadline=None,
        database=None,
        print_blob=False,
        phases=[Phase.generate],  # shrinking a sequence takes longer than reading its last request
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def run_sequence(data: st.DataObject) -> None:
        fuzzed.run_sequence(data)

    run_sequence()
    assert fuzzed.sent >= 10_000
    # Most requests are invalid on purpose, but some must succeed.
    assert fuzzed.acknowledged > fuzzed.sent // 10
