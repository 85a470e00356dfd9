"""Section J over HTTPS: owners and dependents of custom kinds, followed by their metadata alone."""

from __future__ import annotations

from typing import Any

from tests.contract.api_server.definitions import WIDGETS, define, widget
from tests.loops.inprocess import running, until
from volplane.client import kubeconfig
from volplane.client.client import Client
from volplane.controllers.garbage.controller import GarbageCollector

CONFIGS = "/api/v1/namespaces/default/configmaps"


def owned_by(owner: Any) -> dict[str, Any]:
    names = {key: owner["metadata"][key] for key in ("name", "uid")}
    return {"apiVersion": owner["apiVersion"], "kind": owner["kind"], **names}


async def test_an_object_goes_with_its_custom_owner_and_a_custom_object_with_its_built_in_one(
    served: Any,
) -> None:
    async with served() as api:
        transport = kubeconfig.load(api.server.kubeconfig)
        client = Client(transport, component="kcm")
        try:
            async with running(GarbageCollector(client).run()):
                await define(api)
                owner = (await api.post(WIDGETS, widget("owner", size=1))).json
                below = {"metadata": {"name": "below", "ownerReferences": [owned_by(owner)]}}
                config = (await api.post(CONFIGS, below)).json
                config |= {"apiVersion": "v1", "kind": "ConfigMap"}
                last = widget("last", size=2)
                last["metadata"]["ownerReferences"] = [owned_by(config)]
                assert (await api.post(WIDGETS, last)).status == 201
                assert (await api.delete(f"{WIDGETS}/owner")).status == 200

                async def gone() -> bool:
                    paths = (f"{CONFIGS}/below", f"{WIDGETS}/last")
                    return {(await api.get(path)).status for path in paths} == {404}

                await until(gone, 60)
        finally:
            await client.close()
            await transport.close()
