"""Errors of backup and restore; the messages are for the user."""


class BackupError(Exception):
    """The backup or the restore cannot be done."""
