"""All kinds of volumes that a node offers."""

from __future__ import annotations

from volplane.api.storage import CSIDriver
from volplane.client.cache import Cache
from volplane.volumes.base import NodeContext, VolumePlugin
from volplane.volumes.configmap import ConfigMapPlugin
from volplane.volumes.csi import CsiBlockPlugin, CsiPlugin, RegisteredDrivers
from volplane.volumes.downward import DownwardApiPlugin
from volplane.volumes.emptydir import EmptyDirPlugin
from volplane.volumes.hostpath import HostPathPlugin
from volplane.volumes.local import LocalVolumePlugin
from volplane.volumes.projected import ProjectedPlugin, ServiceAccountTokens
from volplane.volumes.secret import SecretPlugin


def all_plugins(
    site: NodeContext, drivers: RegisteredDrivers, objects: Cache[CSIDriver]
) -> tuple[VolumePlugin, ...]:
    tokens = ServiceAccountTokens(site.client, site.token_max_age)
    return (
        CsiPlugin(site, drivers, objects, tokens),
        CsiBlockPlugin(site, drivers, objects, tokens),
        EmptyDirPlugin(site),
        HostPathPlugin(site),
        LocalVolumePlugin(site),
        ConfigMapPlugin(site),
        SecretPlugin(site),
        ProjectedPlugin(site, tokens),
        DownwardApiPlugin(site),
    )
