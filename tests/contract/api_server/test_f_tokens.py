"""Section F, service accounts: tokens asked for, reviewed, and dead with what they are bound to."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.contract.api_server.people import DEFAULT, person

ACCOUNT = f"{DEFAULT}/serviceaccounts/robot"
REVIEW = "/apis/authentication.k8s.io/v1/tokenreviews"
ISSUER = "https://kubernetes.default.svc.cluster.local"
POD = {"serviceAccountName": "robot", "containers": [{"name": "c", "image": "busybox"}]}


def claims_of(token: str) -> dict[str, Any]:
    body = token.split(".")[1]
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return claims


async def robot(api: Any) -> dict[str, Any]:
    made = await api.post(f"{DEFAULT}/serviceaccounts", {"metadata": {"name": "robot"}})
    assert made.status == 201
    account: dict[str, Any] = made.json
    return account


async def pod(api: Any, name: str = "p", **spec: Any) -> dict[str, Any]:
    made = await api.post(f"{DEFAULT}/pods", {"metadata": {"name": name}, "spec": {**POD, **spec}})
    assert made.status == 201, made.json
    found: dict[str, Any] = made.json
    return found


def bound_to(obj: dict[str, Any], kind: str = "Pod") -> dict[str, Any]:
    meta = obj["metadata"]
    return {"kind": kind, "apiVersion": "v1", "name": meta["name"], "uid": meta["uid"]}


async def review(api: Any, token: str, *audiences: str) -> dict[str, Any]:
    answer = await api.post(REVIEW, {"spec": {"token": token, "audiences": list(audiences)}})
    assert answer.status == 201
    status: dict[str, Any] = answer.json["status"]
    return status


async def test_a_token_request_of_60_seconds_is_422(served: Any) -> None:
    async with served() as api:
        await robot(api)
        answer = await api.post(f"{ACCOUNT}/token", {"spec": {"expirationSeconds": 60}})
        assert answer.status == 422
        assert answer.json["message"] == (
            'TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds: Invalid value: 60: '
            "may not specify a duration less than 10 minutes"
        )
        longer = await api.post(f"{ACCOUNT}/token", {"spec": {"expirationSeconds": (1 << 32) + 1}})
        assert longer.status == 422
        assert "may not specify a duration larger than 2^32 seconds" in longer.json["message"]


async def test_a_review_of_a_token_of_a_deleted_pod_is_not_authenticated(served: Any) -> None:
    async with served() as api:
        await robot(api)
        spec = {"boundObjectRef": bound_to(await pod(api))}
        token = (await api.post(f"{ACCOUNT}/token", {"spec": spec})).json["status"]["token"]
        assert (await review(api, token))["authenticated"] is True
        await api.delete(f"{DEFAULT}/pods/p")
        dead = "[invalid bearer token, service account token has been invalidated]"
        assert await review(api, token) == {"error": dead}
        await pod(api)  # another of the same name is not the same
        assert "does not match service account pod ref claim" in (await review(api, token))["error"]


async def test_a_token_says_whose_it_is_and_what_it_is_bound_to(served: Any) -> None:
    async with served() as api:
        account = await robot(api)
        node = (await api.post("/api/v1/nodes", {"metadata": {"name": "n1"}})).json
        made = await pod(api, nodeName="n1")
        asked = await api.post(f"{ACCOUNT}/token", {"spec": {"boundObjectRef": bound_to(made)}})
        assert asked.status == 201
        assert asked.json["kind"] == "TokenRequest"
        meta = asked.json["metadata"]
        assert (meta["name"], meta["namespace"], meta["uid"]) == (
            "robot",
            "default",
            account["metadata"]["uid"],
        )
        assert asked.json["spec"]["audiences"] == [ISSUER]
        assert asked.json["spec"]["expirationSeconds"] == 3600
        token = asked.json["status"]["token"]
        claims = claims_of(token)
        assert claims["sub"] == "system:serviceaccount:default:robot"
        assert (claims["iss"], claims["aud"]) == (ISSUER, [ISSUER])
        assert claims["exp"] - claims["iat"] == 3600
        assert claims["kubernetes.io"] == {
            "namespace": "default",
            "serviceaccount": {"name": "robot", "uid": account["metadata"]["uid"]},
            "pod": {"name": "p", "uid": made["metadata"]["uid"]},
            "node": {"name": "n1", "uid": node["metadata"]["uid"]},
        }
        status = await review(api, token)
        assert status["user"] == {
            "username": "system:serviceaccount:default:robot",
            "uid": account["metadata"]["uid"],
            "groups": ["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"],
            "extra": {
                "authentication.kubernetes.io/credential-id": [f"JTI={claims['jti']}"],
                "authentication.kubernetes.io/pod-name": ["p"],
                "authentication.kubernetes.io/pod-uid": [made["metadata"]["uid"]],
                "authentication.kubernetes.io/node-name": ["n1"],
                "authentication.kubernetes.io/node-uid": [node["metadata"]["uid"]],
            },
        }
        assert status["audiences"] == [ISSUER]
        async with person(api.server, token=token) as bearer:
            me = await bearer.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
            assert me.json["status"]["userInfo"] == status["user"]
            # The keys that sign such tokens are open to every account.
            keys = await bearer.get("/openid/v1/jwks")
            assert keys.json["keys"][0]["kty"] == "EC"
            assert keys.headers.get("content-type") == "application/jwk-set+json"
            assert keys.headers.get("cache-control") == "public, max-age=3600"
            discovery = (await bearer.get("/.well-known/openid-configuration")).json
            assert (discovery["issuer"], discovery["jwks_uri"]) == (ISSUER, f"{ISSUER}/openid/v1/jwks")
        # The node is told, but the token lives as long as the pod does.
        await api.delete("/api/v1/nodes/n1")
        assert (await review(api, token))["authenticated"] is True


async def test_3607_seconds_for_a_pod_last_a_year_and_warn_after_an_hour(served: Any) -> None:
    async with served() as api:
        await robot(api)
        spec = {"boundObjectRef": bound_to(await pod(api)), "expirationSeconds": 3607}
        claims = claims_of((await api.post(f"{ACCOUNT}/token", {"spec": spec})).json["status"]["token"])
        assert claims["exp"] - claims["iat"] == 365 * 24 * 3600
        assert claims["kubernetes.io"]["warnafter"] == claims["iat"] + 3607
        other = {**spec, "audiences": [ISSUER, "vault"]}
        claims = claims_of((await api.post(f"{ACCOUNT}/token", {"spec": other})).json["status"]["token"])
        assert claims["exp"] - claims["iat"] == 3607


@pytest.mark.parametrize(
    ("reference", "status", "reported"),
    [
        (
            {"kind": "ConfigMap", "apiVersion": "v1", "name": "a"},
            400,
            "cannot bind token to object of type /v1, Kind=ConfigMap",
        ),
        (
            {"kind": "Pod", "apiVersion": "v1", "name": "other"},
            400,
            'cannot bind token for serviceaccount "robot" to pod running with different serviceaccount name.',
        ),
        ({"kind": "Pod", "apiVersion": "v1", "name": "nobody"}, 404, 'pods "nobody" not found'),
        (
            {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": "x"},
            409,
            'Operation cannot be fulfilled on Pod "p": the UID in the bound object reference (x) does not '
            "match the UID in record. The object might have been deleted and then recreated",
        ),
        ({"kind": "Secret", "apiVersion": "v1", "name": "s"}, 201, ""),
        ({"kind": "Node", "apiVersion": "v1", "name": "n1"}, 201, ""),
    ],
)
async def test_what_a_token_can_be_bound_to(
    served: Any, reference: dict[str, Any], status: int, reported: str
) -> None:
    async with served() as api:
        await robot(api)
        await api.post(f"{DEFAULT}/serviceaccounts", {"metadata": {"name": "default"}})
        await pod(api)
        await pod(api, "other", serviceAccountName="default")
        await api.post(f"{DEFAULT}/secrets", {"metadata": {"name": "s"}})
        await api.post("/api/v1/nodes", {"metadata": {"name": "n1"}})
        answer = await api.post(f"{ACCOUNT}/token", {"spec": {"boundObjectRef": reference}})
        assert answer.status == status, answer.json
        if reported:
            assert answer.json["message"] == reported
            return
        token = answer.json["status"]["token"]
        assert (await review(api, token))["authenticated"] is True
        where = "/api/v1/nodes/n1" if reference["kind"] == "Node" else f"{DEFAULT}/secrets/s"
        await api.delete(where)
        assert "authenticated" not in await review(api, token)


async def test_the_body_of_a_token_request_may_repeat_the_url_but_not_contradict_it(served: Any) -> None:
    async with served() as api:
        account = await robot(api)

        async def ask(**metadata: str) -> int:
            status: int = (await api.post(f"{ACCOUNT}/token", {"metadata": metadata, "spec": {}})).status
            return status

        assert await ask(name="robot", namespace="default", uid=account["metadata"]["uid"]) == 201
        assert await ask(name="other") == 422
        assert await ask(namespace="other") == 422
        assert await ask(uid="other") == 409


async def test_a_review_asks_for_audiences(served: Any) -> None:
    async with served() as api:
        await robot(api)
        vault = (await api.post(f"{ACCOUNT}/token", {"spec": {"audiences": ["vault"]}})).json["status"][
            "token"
        ]
        good = await review(api, vault, "vault", "other")
        assert (good["authenticated"], good["audiences"]) == (True, ["vault"])
        reported = f'token audiences ["vault"] is invalid for the target audiences ["{ISSUER}"]'
        assert (await review(api, vault))["error"] == f"[invalid bearer token, {reported}]"
        async with person(api.server, token=vault) as bearer:
            assert (await bearer.get("/api")).status == 401
        admin = await review(api, api.server.admin_token, "vault")
        assert admin["error"] == "invalid bearer token"


async def test_a_review_of_nothing_is_400_and_of_nonsense_is_201(served: Any) -> None:
    async with served() as api:
        empty = await api.post(REVIEW, {"spec": {}})
        assert empty.status == 400
        assert empty.json["message"] == "token is required for TokenReview in authentication"
        assert await review(api, "nonsense") == {"error": "invalid bearer token"}
        await robot(api)
        token = (await api.post(f"{ACCOUNT}/token", {"spec": {}})).json["status"]["token"]
        head, claims, signature = token.split(".")
        forged = f"{head}.{claims}.{signature[:-6]}AAAAAA"
        assert "authenticated" not in await review(api, forged)
        unsigned = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
        assert "authenticated" not in await review(api, f"{unsigned}.{claims}.")
        await api.delete(ACCOUNT)
        gone = await review(api, token)
        assert gone["error"] == '[invalid bearer token, serviceaccounts "robot" not found]'
        await robot(api)
        assert "does not match claim" in (await review(api, token))["error"]
