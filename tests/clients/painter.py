"""A typical kopf operator: a Painting gets a config map with its paint, and a status.

Run with `kopf run` by test_kopf_operator.py.
"""

from __future__ import annotations

from typing import Any

import kopf
import kubernetes

GROUP = "art.example.com"


@kopf.on.startup()
def quick(settings: kopf.OperatorSettings, **_: Any) -> None:
    settings.persistence.finalizer = f"{GROUP}/painter"
    # Status has its own subresource; what kopf remembers goes into annotations.
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)


@kopf.on.create(GROUP, "v1", "paintings")
@kopf.on.resume(GROUP, "v1", "paintings")  # type: ignore[arg-type]
def paint(body: kopf.Body, spec: kopf.Spec, name: str, namespace: str, **_: Any) -> dict[str, str]:
    paint = {"metadata": {"name": f"{name}-paint"}, "data": {"colour": spec["colour"]}}
    kopf.adopt(paint, owner=body)
    with kubernetes.config.new_client_from_config() as api:
        core: Any = kubernetes.client.CoreV1Api(api)
        try:
            core.create_namespaced_config_map(namespace, paint)
        except kubernetes.client.ApiException as error:
            if error.status != 409:
                raise
    kopf.info(body, reason="Painted", message=f"in {spec['colour']}")
    return {"colour": spec["colour"]}


@kopf.on.update(GROUP, "v1", "paintings", field="spec.colour")  # type: ignore[arg-type]
def repaint(name: str, namespace: str, new: str, patch: kopf.Patch, **_: Any) -> None:
    with kubernetes.config.new_client_from_config() as api:
        core: Any = kubernetes.client.CoreV1Api(api)
        core.patch_namespaced_config_map(f"{name}-paint", namespace, {"data": {"colour": new}})
    patch.status["repainted"] = new


@kopf.on.delete(GROUP, "v1", "paintings")  # type: ignore[arg-type]
def mourn(name: str, namespace: str, **_: Any) -> None:
    with kubernetes.config.new_client_from_config() as api:
        core: Any = kubernetes.client.CoreV1Api(api)
        core.create_namespaced_config_map(namespace, {"metadata": {"name": f"{name}-was-here"}})
