"""Instance and zone of a node, from the instance metadata service or from its Node object.

A short timeout shows that there is no metadata service: it is one network hop away. A pod with its own
network namespace may be too many hops away; then the Node object has what the cloud controller wrote.
"""

from __future__ import annotations

import logging
import re

from msgspec import Struct

from volplane.api.core import Node
from volplane.drivers.ebs.constants import OWN_ZONE_KEY, ZONE_KEY
from volplane.web import HttpClient
from volplane.web.client import HttpError

log = logging.getLogger(__name__)

ENDPOINT = "http://169.254.169.254"
REQUEST_TIMEOUT = 2.0  # seconds
TOKEN_TTL = "60"  # seconds, of the session token

_PROVIDER = re.compile(r"aws:///(?P<zone>[^/]*)/(?:.*/)?(?P<instance>i-[0-9a-z-]+)")


class InstanceLocation(Struct, frozen=True):
    instance: str
    zone: str


async def from_instance(endpoint: str = ENDPOINT) -> InstanceLocation | None:
    """From the instance metadata service; None if it does not answer."""
    http = HttpClient(endpoint or ENDPOINT)
    try:
        lifetime = [("X-aws-ec2-metadata-token-ttl-seconds", TOKEN_TTL)]
        answer = await http.request("PUT", "/latest/api/token", headers=lifetime, timeout=REQUEST_TIMEOUT)
        if answer.status != 200:
            return None
        token = [("X-aws-ec2-metadata-token", answer.body.decode())]
        values = []
        for path in ("instance-id", "placement/availability-zone"):
            answer = await http.request(
                "GET", f"/latest/meta-data/{path}", headers=token, timeout=REQUEST_TIMEOUT
            )
            if answer.status != 200:
                return None
            values.append(answer.body.decode().strip())
        return InstanceLocation(*values)
    except (OSError, TimeoutError, HttpError) as error:
        log.info("no instance metadata at %s: %s", endpoint or ENDPOINT, error)
        return None
    finally:
        await http.close()


def from_node(node: Node) -> InstanceLocation | None:
    """From the Node object; None if its provider is not AWS."""
    found = _PROVIDER.fullmatch(node.spec.provider_id)
    if found is None:
        return None
    labels = node.metadata.labels
    zone = found["zone"] or labels.get(ZONE_KEY, "") or labels.get(OWN_ZONE_KEY, "")
    return InstanceLocation(found["instance"], zone) if zone else None
