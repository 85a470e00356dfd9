"""All kinds of volumes that a node offers."""

from __future__ import annotations

from volplane.api.storage import CSIDriver
from volplane.client.cache import Cache
from volplane.volumes.base import Plugin, Site
from volplane.volumes.configmap import ConfigMap
from volplane.volumes.csi import Csi, CsiBlock, Drivers
from volplane.volumes.downward import Downward
from volplane.volumes.emptydir import EmptyDir
from volplane.volumes.hostpath import HostPath
from volplane.volumes.local import Local
from volplane.volumes.projected import Projected, Tokens
from volplane.volumes.secret import Secret


def all_plugins(site: Site, drivers: Drivers, objects: Cache[CSIDriver]) -> tuple[Plugin, ...]:
    tokens = Tokens(site.client, site.token_max_age)
    return (
        Csi(site, drivers, objects, tokens),
        CsiBlock(site, drivers, objects, tokens),
        EmptyDir(site),
        HostPath(site),
        Local(site),
        ConfigMap(site),
        Secret(site),
        Projected(site, tokens),
        Downward(site),
    )
