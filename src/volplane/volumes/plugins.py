"""The volume plugins of a node."""

from __future__ import annotations

import asyncio

from volplane.api.storage import CSIDriver
from volplane.client.cache import Cache
from volplane.volumes.base import NodeContext, VolumePlugin
from volplane.volumes.configmap import ConfigMapPlugin
from volplane.volumes.csi import CsiBlockPlugin, CsiPlugin, RegisteredDrivers
from volplane.volumes.downward import DownwardApiPlugin
from volplane.volumes.emptydir import EmptyDirPlugin
from volplane.volumes.hostpath import HostPathPlugin
from volplane.volumes.image import ImagePlugin
from volplane.volumes.iscsi import IscsiBlockPlugin, IscsiPlugin
from volplane.volumes.local import LocalVolumePlugin
from volplane.volumes.local_block import LocalBlockPlugin
from volplane.volumes.nfs import NfsPlugin
from volplane.volumes.projected import ProjectedPlugin, ServiceAccountTokens
from volplane.volumes.secret import SecretPlugin


def all_plugins(
    context: NodeContext, drivers: RegisteredDrivers, objects: Cache[CSIDriver]
) -> tuple[VolumePlugin, ...]:
    iscsi_locks: dict[str, asyncio.Lock] = {}
    tokens = ServiceAccountTokens(context.client, context.token_max_age)
    return (
        CsiPlugin(context, drivers, objects, tokens),
        CsiBlockPlugin(context, drivers, objects, tokens),
        EmptyDirPlugin(context),
        HostPathPlugin(context),
        LocalVolumePlugin(context),
        LocalBlockPlugin(context),
        NfsPlugin(context),
        IscsiPlugin(context, locks=iscsi_locks),
        IscsiBlockPlugin(context, locks=iscsi_locks),
        ConfigMapPlugin(context),
        SecretPlugin(context),
        ProjectedPlugin(context, tokens),
        DownwardApiPlugin(context),
        ImagePlugin(context),
    )
