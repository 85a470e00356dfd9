"""For whom a node may ask a pod's token: those whom the pod, or a driver that it uses, asks it for."""

from __future__ import annotations

from collections.abc import Sequence

from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod, Volume
from volplane.api.storage import CSIDriver
from volplane.apiserver.auth.authorize import Act, Authority
from volplane.apiserver.auth.nodes import references
from volplane.apiserver.auth.texts import aggregate, quoted
from volplane.apiserver.strategy import Call, Reader

VERB = "request-serviceaccounts-token-audience"


class _Lost(Exception):
    """An object on the way from a volume to its driver is missing."""


async def wrong_audience(call: Call, pod: Pod, audiences: Sequence[str], authority: Authority) -> str:
    """Why the node may not have this token; "" when it may."""
    if len(audiences) > 1:
        return "node may only request 0 or 1 audiences"
    audience = audiences[0] if audiences else ""
    errors: list[str] = []
    for volume in pod.spec.volumes:
        try:
            if await _asks(call.reader, pod, volume, audience):
                return ""
        except _Lost as lost:
            errors.append(str(lost))
    if errors:
        return f"error validating audience {quoted(audience)}: {aggregate(errors)}"
    act = Act(VERB, "", audience, call.namespace, call.name)
    if audience and authority.allows(call.user, act):
        return ""
    return (
        f"audience {quoted(audience)} not found in pod spec volume, "
        f"{call.user.name} is not authorized to request tokens for this audience"
    )


async def _asks(reader: Reader, pod: Pod, volume: Volume, audience: str) -> bool:
    for source in volume.projected.sources if volume.projected is not None else ():
        if source.service_account_token is not None and source.service_account_token.audience == audience:
            return True
    name = await _driver(reader, pod, volume)
    if not name:
        return False
    driver = await reader.get(CSIDriver, name)
    if driver is None:
        raise _Lost(f'csidriver.storage.k8s.io "{name}" not found')
    return any(request.audience == audience for request in driver.spec.token_requests)


async def _driver(reader: Reader, pod: Pod, volume: Volume) -> str:
    if volume.csi is not None:
        return volume.csi.driver
    name = references.claim(pod, volume)
    if not name:
        return ""
    claim = await reader.get(PersistentVolumeClaim, name, pod.namespace)
    if claim is None:
        raise _Lost(f'persistentvolumeclaim "{name}" not found')
    found = await reader.get(PersistentVolume, claim.spec.volume_name) if claim.spec.volume_name else None
    if found is None:
        raise _Lost(f'persistentvolume "{claim.spec.volume_name}" not found')
    return found.spec.csi.driver if found.spec.csi is not None else ""
