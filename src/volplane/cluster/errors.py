"""Errors that keep a cluster from starting; the messages are for the user.

CannotStart
├── UnusableDataDirectory   the data directory cannot be used
├── RoleFailed              the process of a role keeps ending
├── NoContainerRuntime      the container runtime does not answer, or has no network
└── ClusterNotReady         the roles run, but claims and pods cannot be served
"""


class CannotStart(Exception):
    """Its message is shown to the user."""


class UnusableDataDirectory(CannotStart):
    """The data directory cannot be used."""


class RoleFailed(CannotStart):
    """A role keeps ending; the message has the last line of its log."""


class NoContainerRuntime(CannotStart):
    """The container runtime that was asked for cannot be used."""


class ClusterNotReady(CannotStart):
    """The cluster did not become ready in time; the message says what is missing."""
