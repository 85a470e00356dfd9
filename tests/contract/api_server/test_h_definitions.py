"""Section H, definitions themselves: what is refused, what status says, names, deletion."""

from __future__ import annotations

from typing import Any

import pytest

from tests.apiserver.conftest import Api, client_of
from tests.contract.api_server.definitions import (
    CRDS,
    STRING,
    WIDGETS,
    conditions,
    define,
    definition,
    error_message,
    obj,
    undefine,
    version,
    widget,
)
from volplane import apiserver
from volplane.api.apiextensions import CustomResourceDefinition

Json = Any


async def test_a_definition_is_served_when_it_is_answered(served: Any) -> None:
    async with served() as api:
        made = await define(api)
        assert made["metadata"]["generation"] == 1
        assert made["spec"]["names"] == {
            "plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList",
        }  # fmt: skip
        assert made["spec"]["conversion"] == {"strategy": "None"}
        assert made["status"]["acceptedNames"] == made["spec"]["names"]
        assert made["status"]["storedVersions"] == ["v1"]
        assert conditions(made) == {
            "NamesAccepted": ("True", "NoConflicts"),
            "Established": ("True", "InitialNamesAccepted"),
        }
        assert "finalizers" not in made["metadata"]
        answer = await api.post(WIDGETS, widget(size=1))
        assert answer.status == 201, answer.json


def _with(**spec: Json) -> Json:
    made = definition()
    made["spec"].update(spec)
    return made


def _ruled(rule: str) -> Json:
    return {**obj(a=STRING), "x-kubernetes-validations": [{"rule": rule}]}


def _named(name: str) -> Json:
    made = definition()
    made["metadata"]["name"] = name
    return made


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param(
            _named("gadgets.example.com"),
            'metadata.name: Invalid value: "gadgets.example.com": must be spec.names.plural+"."+spec.group',
            id="its name is its resource",
        ),
        pytest.param(
            definition(group="example"),
            'spec.group: Invalid value: "example": should be a domain with at least one dot',
            id="a group is a domain",
        ),
        pytest.param(
            _with(scope="Galaxy"),
            'spec.scope: Unsupported value: "Galaxy": supported values: "Cluster", "Namespaced"',
            id="scope",
        ),
        pytest.param(
            definition(version(), version("v2")),
            "must have exactly one version marked as storage version",
            id="one version is stored",
        ),
        pytest.param(
            definition(version(), version(storage=False)),
            "must contain unique version names",
            id="versions are different",
        ),
        pytest.param(
            definition({"name": "v1", "served": True, "storage": True}),
            "spec.versions[0].schema.openAPIV3Schema: Required value",
            id="a schema is needed",
        ),
        pytest.param(
            definition(version("V1")), 'spec.versions[0].name: Invalid value: "V1"', id="names of versions"
        ),
        pytest.param(
            definition(kind="Widget", listKind="Widget"),
            "spec.names.listKind: Invalid value: \"Widget\": kind and listKind may not be the same",
            id="a list is another kind",
        ),
        pytest.param(
            definition(shortNames=["W"]), 'spec.names.shortNames[0]: Invalid value: "W"', id="short names"
        ),
        pytest.param(
            definition(group="volplane.k8s.io"),
            "metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have "
            'approval annotation "api-approved.kubernetes.io", see '
            "https://github.com/kubernetes/enhancements/pull/1111",
            id="groups of the project need its word",
        ),
        pytest.param(
            definition(version(spec={"properties": {"a": STRING}})),
            "spec.validation.openAPIV3Schema.properties[spec].type: Required value: "
            "must not be empty for specified object fields",
            id="every field has a type",
        ),
        pytest.param(
            definition(version(deprecationWarning="old")),
            'deprecationWarning: Invalid value: "old": can only be set for deprecated versions',
            id="a warning of what is not deprecated",
        ),
        pytest.param(
            definition(version(additionalPrinterColumns=[{"name": "A", "type": "colour", "jsonPath": "a"}])),
            'spec.additionalPrinterColumns[0].type: Invalid value: "colour": '
            "must be one of boolean,date,integer,number,string",
            id="columns have known types",
        ),
        pytest.param(
            definition(version(selectableFields=[{"jsonPath": ".spec.weight"}])),
            'spec.selectableFields[0].jsonPath: Invalid value: ".spec.weight": '
            "is an invalid path: does not refer to a valid field",
            id="only what is there can be selected by",
        ),
        pytest.param(
            definition(version(subresources={"scale": {"specReplicasPath": ".size"}})),
            'scale.specReplicasPath: Invalid value: ".size": should be a json path under .spec',
            id="replicas stand in the spec",
        ),
        pytest.param(
            definition(version(spec=_ruled("self.b == ''"))),
            "openAPIV3Schema.properties[spec].x-kubernetes-validations[0].rule: Invalid value: "
            '{"Rule":"self.b == \'\'","Message":"","MessageExpression":"","Reason":null,"FieldPath":"",'
            '"OptionalOldSelf":null}: compilation failed: ERROR: <input>:1:5: undefined field \'b\'\n'
            " | self.b == ''\n | ....^",
            id="rules must compile",
        ),
        pytest.param(
            definition(version(spec=_ruled("self.a.contains(self.a)"))),
            "openAPIV3Schema.properties[spec].x-kubernetes-validations[0].rule: Forbidden: estimated rule "
            "cost exceeds budget by factor of more than 100x (try simplifying the rule, or adding maxItems",
            id="rules must not cost too much",
        ),
    ],
)  # fmt: skip
async def test_a_definition_is_refused(served: Any, given: Json, words: str) -> None:
    async with served() as api:
        assert words in error_message(await api.post(CRDS, given))


async def test_an_approved_group_says_so(served: Any) -> None:
    async with served() as api:
        given = definition(group="volplane.k8s.io")
        given["metadata"]["annotations"] = {"api-approved.kubernetes.io": "unapproved, a test"}
        made = (await api.post(CRDS, given)).json
        assert conditions(made)["KubernetesAPIApprovalPolicyConformant"] == ("False", "UnapprovedAnnotation")
        path = f"{CRDS}/widgets.volplane.k8s.io"
        url = {"api-approved.kubernetes.io": "https://example.com/1"}
        made = (await api.merge(path, {"metadata": {"annotations": url}})).json
        assert conditions(made)["KubernetesAPIApprovalPolicyConformant"] == ("True", "ApprovedAnnotation")


async def test_an_update_needs_the_version_and_keeps_what_is_stored_under(served: Any) -> None:
    async with served() as api:
        made = await define(api)
        path = f"{CRDS}/widgets.example.com"
        bare = definition()
        assert "metadata.resourceVersion: Invalid value: 0" in error_message(await api.put(path, bare))
        cluster = {**made, "spec": {**made["spec"], "scope": "Cluster"}}
        assert (
            error_message(await api.put(path, cluster))
            == 'spec.scope: Invalid value: "Cluster": field is immutable'
        )
        kind = {**made["spec"]["names"], "kind": "Gadget"}
        renamed = await api.merge(path, {"spec": {"names": kind}})
        assert 'spec.names.kind: Invalid value: "Gadget": field is immutable' in error_message(renamed)
        short = await api.merge(path, {"spec": {"names": {"shortNames": ["wd"]}}})
        assert (short.status, short.json["metadata"]["generation"]) == (200, 2)
        assert short.json["status"]["acceptedNames"]["shortNames"] == ["wd"]
        labelled = await api.merge(path, {"metadata": {"labels": {"a": "b"}}})
        assert labelled.json["metadata"]["generation"] == 2


async def test_a_version_that_was_stored_stays_listed(served: Any) -> None:
    async with served() as api:
        await define(api, version(), version("v2", storage=False))
        path = f"{CRDS}/widgets.example.com"
        moved = [version(storage=False), version("v2")]
        answer = await api.merge(path, {"spec": {"versions": moved}})
        assert answer.json["status"]["storedVersions"] == ["v1", "v2"]
        assert 'status.storedVersions[0]: Invalid value: "v1": missing from spec.versions' in error_message(
            await api.merge(path, {"spec": {"versions": [version("v2")]}})
        )
        migrated = await api.merge(f"{path}/status", {"status": {"storedVersions": ["v2"]}})
        assert migrated.json["status"]["storedVersions"] == ["v2"]
        assert (await api.merge(path, {"spec": {"versions": [version("v2")]}})).status == 200
        assert (await api.get(WIDGETS)).status == 404
        assert (await api.get(WIDGETS.replace("/v1/", "/v2/"))).status == 200


async def test_a_name_has_one_owner_and_waits_for_the_next(served: Any) -> None:
    async with served() as api:
        await define(api, shortNames=["wd"])
        other = await define(api, plural="gadgets", kind="Widget", singular="gadget")
        assert conditions(other) == {
            "NamesAccepted": ("False", "ListKindConflict"),
            "Established": ("False", "NotAccepted"),
        }
        gadgets = "/apis/example.com/v1/namespaces/default/gadgets"
        assert (await api.get(gadgets)).status == 404
        short = await define(api, plural="gizmos", kind="Gizmo", shortNames=["wd"])
        found = next(c for c in short["status"]["conditions"] if c["type"] == "NamesAccepted")
        assert (found["reason"], found["message"]) == ("ShortNamesConflict", '"wd" is already in use')
        async with api.watch(f"{CRDS}?resourceVersion={short['metadata']['resourceVersion']}") as watch:
            await api.delete(f"{CRDS}/widgets.example.com")
            waiting = {"gadgets.example.com", "gizmos.example.com"}
            while waiting:
                event = await watch.next()
                if event["type"] == "MODIFIED" and conditions(event["object"])["Established"][0] == "True":
                    waiting.discard(event["object"]["metadata"]["name"])
        assert (await api.get(gadgets)).status == 200


async def test_objects_with_finalizers_hold_the_definition(served: Any) -> None:
    async with served() as api:
        await define(api)
        held = widget(size=1)
        held["metadata"]["finalizers"] = ["example.com/hold"]
        await api.post(WIDGETS, held)
        await api.post(WIDGETS, widget("free"))
        path = f"{CRDS}/widgets.example.com"
        async with api.watch(path.removesuffix("/widgets.example.com")) as watch:
            await watch.next()
            deleted = (await api.delete(path)).json
            assert deleted["metadata"]["finalizers"] == ["customresourcecleanup.apiextensions.k8s.io"]
            assert conditions(deleted)["Terminating"] == ("True", "InstanceDeletionPending")
            assert (await watch.next())["type"] == "MODIFIED"
            going = (await watch.next())["object"]
            assert conditions(going)["Terminating"] == ("True", "InstanceDeletionInProgress")
            refused = await api.post(WIDGETS, widget("new"))
            assert (refused.status, refused.json["reason"]) == (403, "Forbidden")
            assert refused.json["message"] == (
                'widgets.example.com "new" is forbidden: '
                "create not allowed while custom resource definition is terminating"
            )
            assert (await api.get(f"{WIDGETS}/free")).status == 404
            assert (await api.get(f"{WIDGETS}/w")).json["metadata"]["deletionTimestamp"]
            again = await api.delete(path)
            assert again.status == 200
            freed = await api.merge(f"{WIDGETS}/w", {"metadata": {"finalizers": None}})
            assert freed.status == 200
            assert (await watch.next())["type"] == "DELETED"
        assert (await api.get(path)).status == 404
        assert (await api.get("/apis/example.com")).status == 404
        again = await define(api)
        assert (await api.get(WIDGETS)).json["items"] == []


async def test_a_definition_can_be_tried_without_consequences(served: Any) -> None:
    async with served() as api:
        tried = await api.post(f"{CRDS}?dryRun=All", definition())
        assert (tried.status, conditions(tried.json)["Established"][0]) == (201, "True")
        assert (await api.get(CRDS)).json["items"] == []
        assert (await api.get(WIDGETS)).status == 404


async def test_unknown_formats_are_told(served: Any) -> None:
    async with served() as api:
        odd = obj(a={"type": "string", "format": "colour"}, b={"type": "string", "format": "date-time"})
        made = await api.post(CRDS, definition(version(spec=odd)))
        assert (made.status, made.warnings) == (201, ['299 - "unrecognized format \\"colour\\""'])


async def test_kinds_are_there_again_after_a_restart(served: Any) -> None:
    async with served() as api:
        await define(api)
        await api.post(WIDGETS, widget(size=1))
        second = await apiserver.run(
            apiserver.ApiServerOptions(data_dir=str(api.server.kubeconfig.parent)), api.store
        )
        other = Api(second, api.store, client_of(second))
        try:
            assert (await other.get(f"{WIDGETS}/w")).status == 200
        finally:
            await other.http.close()
            await second.close(0)


async def test_two_servers_over_one_store_agree(served: Any) -> None:
    async with served() as api:
        second = await apiserver.run(
            apiserver.ApiServerOptions(data_dir=str(api.server.kubeconfig.parent)), api.store
        )
        other = Api(second, api.store, client_of(second))
        try:
            async with other.watch(CRDS) as watch:
                await define(api)
                await watch.next()
                wait_applied = second.backend.registry.of(CustomResourceDefinition).wait_applied
                assert wait_applied is not None
                await wait_applied(api.store.revision)
            made = await other.post(WIDGETS, widget(size=1))
            assert made.status == 201, made.json
            assert (await api.get(f"{WIDGETS}/w")).json == made.json
            async with api.watch(WIDGETS) as here, other.watch(WIDGETS) as there:
                await here.next()
                await there.next()
                await other.delete(f"{CRDS}/widgets.example.com")
                assert (await here.next())["type"] == "DELETED"
                assert (await there.next())["type"] == "DELETED"
                assert await here.has_ended()
                assert await there.has_ended()
            assert (await api.get(WIDGETS)).status == (await other.get(WIDGETS)).status == 404
        finally:
            await other.http.close()
            await second.close(0)


async def test_a_definition_cannot_take_the_place_of_a_built_in_kind(served: Any) -> None:
    async with served() as api:
        classes = "/apis/storage.k8s.io/v1/storageclasses"
        await api.post(classes, {"metadata": {"name": "fast"}, "provisioner": "p"})
        given = definition(
            group="storage.k8s.io", scope="Cluster", plural="storageclasses", kind="StorageClass"
        )
        given["metadata"]["annotations"] = {"api-approved.kubernetes.io": "unapproved, a test"}
        assert (await api.post(CRDS, given)).status == 201
        assert (await api.get(f"{classes}/fast")).json["provisioner"] == "p"
        await undefine(api, "storageclasses.storage.k8s.io")
        assert (await api.get(f"{classes}/fast")).json["provisioner"] == "p"
