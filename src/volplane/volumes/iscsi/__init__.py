"""iscsi volumes: log in to a target of an iSCSI server, and mount one of its disks."""

from volplane.volumes.iscsi.block import IscsiBlockPlugin
from volplane.volumes.iscsi.plugin import IscsiPlugin

__all__ = ["IscsiBlockPlugin", "IscsiPlugin"]
