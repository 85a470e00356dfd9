"""Create API clients from a kubeconfig, or from a pod's service account."""

from __future__ import annotations

import os

from volplane.cli.error import CommandError
from volplane.client import kubeconfig as configs
from volplane.client.client import Client
from volplane.client.https import HttpsTransport


def open_transport(kubeconfig: str, component: str, *, server: str = "") -> HttpsTransport:
    """Raises CommandError."""
    path = kubeconfig or os.environ.get("KUBECONFIG", "")
    try:
        if path:
            return configs.load(path, agent=component, server=server)
        return configs.in_cluster(agent=component, server=server)
    except (configs.BadKubeconfig, OSError) as error:
        raise CommandError(f"cannot connect to an API server: {error}") from error


def connect(kubeconfig: str, component: str, *, server: str = "") -> Client:
    """Raises CommandError."""
    return Client(open_transport(kubeconfig, component, server=server), component=component)
