"""Which instance a node is, and in which zone: told by the machine it runs on, or by its Node object.

The metadata service answers within a hop, or there is none; so a short wait tells the two apart. A pod with a
network of its own may be a hop too far for it: then the Node has what the cloud's controller wrote there.
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
REQUEST_TIMEOUT = 2.0  # seconds for each question
TOKEN_TTL = "60"  # seconds of the token that the answers cost

_PROVIDER = re.compile(r"aws:///(?P<zone>[^/]*)/(?:.*/)?(?P<instance>i-[0-9a-z-]+)")


class InstanceLocation(Struct, frozen=True):
    instance: str
    zone: str


async def from_instance(endpoint: str = ENDPOINT) -> InstanceLocation | None:
    """What the instance's own metadata say; None where nobody answers."""
    http = HttpClient(endpoint or ENDPOINT)
    try:
        lifetime = [("X-aws-ec2-metadata-token-ttl-seconds", TOKEN_TTL)]
        answer = await http.request("PUT", "/latest/api/token", headers=lifetime, timeout=REQUEST_TIMEOUT)
        if answer.status != 200:
            return None
        token = [("X-aws-ec2-metadata-token", answer.body.decode())]
        told = []
        for path in ("instance-id", "placement/availability-zone"):
            answer = await http.request(
                "GET", f"/latest/meta-data/{path}", headers=token, timeout=REQUEST_TIMEOUT
            )
            if answer.status != 200:
                return None
            told.append(answer.body.decode().strip())
        return InstanceLocation(*told)
    except (OSError, TimeoutError, HttpError) as error:
        log.info("no instance metadata at %s: %s", endpoint or ENDPOINT, error)
        return None
    finally:
        await http.close()


def from_node(node: Node) -> InstanceLocation | None:
    """What the cloud's controller wrote on the Node; None if it was none of AWS."""
    found = _PROVIDER.fullmatch(node.spec.provider_id)
    if found is None:
        return None
    labels = node.metadata.labels
    zone = found["zone"] or labels.get(ZONE_KEY, "") or labels.get(OWN_ZONE_KEY, "")
    return InstanceLocation(found["instance"], zone) if zone else None
