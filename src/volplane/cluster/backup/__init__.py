"""Back up a cluster while it runs, and restore it into another directory."""

from volplane.cluster.backup.create import BackupProgress, BackupSummary, create_backup
from volplane.cluster.backup.errors import BackupError
from volplane.cluster.backup.restore import RestoreSummary, restore_backup

__all__ = [
    "BackupError",
    "BackupProgress",
    "BackupSummary",
    "RestoreSummary",
    "create_backup",
    "restore_backup",
]
