"""Which token audiences a node may request for a pod: those of its volumes and of their CSI drivers."""

from __future__ import annotations

from collections.abc import Sequence

from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod, Volume
from volplane.api.storage import CSIDriver
from volplane.apiserver.auth.authorize import Attributes, AuthorizerChain
from volplane.apiserver.auth.go_format import aggregate_errors, go_quote
from volplane.apiserver.auth.nodes import references
from volplane.apiserver.strategy import ApiCall, ObjectReader
from volplane.rules.csi_translation import find_csi_source

VERB = "request-serviceaccounts-token-audience"


class _MissingObject(Exception):
    """An object between a volume and its CSI driver is missing."""


async def audience_error(
    call: ApiCall, pod: Pod, audiences: Sequence[str], authorizer: AuthorizerChain
) -> str:
    """Return why the node may not request this token, or ""."""
    if len(audiences) > 1:
        return "node may only request 0 or 1 audiences"
    audience = audiences[0] if audiences else ""
    errors: list[str] = []
    for volume in pod.spec.volumes:
        try:
            if await _volume_requests(call.reader, pod, volume, audience):
                return ""
        except _MissingObject as lost:
            errors.append(str(lost))
    if errors:
        return f"error validating audience {go_quote(audience)}: {aggregate_errors(errors)}"
    attrs = Attributes(VERB, "", audience, call.namespace, call.name)
    if audience and authorizer.allows(call.user, attrs):
        return ""
    return (
        f"audience {go_quote(audience)} not found in pod spec volume, "
        f"{call.user.name} is not authorized to request tokens for this audience"
    )


async def _volume_requests(reader: ObjectReader, pod: Pod, volume: Volume, audience: str) -> bool:
    for source in volume.projected.sources if volume.projected is not None else ():
        if source.service_account_token is not None and source.service_account_token.audience == audience:
            return True
    name = await _driver(reader, pod, volume)
    if not name:
        return False
    driver = await reader.get(CSIDriver, name)
    if driver is None:
        raise _MissingObject(f'csidriver.storage.k8s.io "{name}" not found')
    return any(request.audience == audience for request in driver.spec.token_requests)


async def _driver(reader: ObjectReader, pod: Pod, volume: Volume) -> str:
    if volume.csi is not None:
        return volume.csi.driver
    name = references.claim(pod, volume)
    if not name:
        return ""
    claim = await reader.get(PersistentVolumeClaim, name, pod.namespace)
    if claim is None:
        raise _MissingObject(f'persistentvolumeclaim "{name}" not found')
    found = await reader.get(PersistentVolume, claim.spec.volume_name) if claim.spec.volume_name else None
    if found is None:
        raise _MissingObject(f'persistentvolume "{claim.spec.volume_name}" not found')
    source = find_csi_source(found)
    return source.driver if source is not None else ""
