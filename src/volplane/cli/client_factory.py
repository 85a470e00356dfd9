"""Create API clients from kubeconfig files, or from a pod's service account."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from volplane.cli.error import CommandError
from volplane.client import kubeconfig as configs
from volplane.client.client import Client
from volplane.client.credentials import CredentialSource
from volplane.client.https import HttpsTransport
from volplane.client.kubeconfig import CURRENT, ContextChoice


def open_transport(
    kubeconfig: str | Sequence[Path],
    component: str,
    choice: ContextChoice = CURRENT,
    *,
    server: str = "",
    source: CredentialSource | None = None,
) -> HttpsTransport:
    """Connect with these files, with those of $KUBECONFIG, or as a pod. Raises CommandError.

    Not with ~/.kube/config: a role that is started without any choice must not change the cluster of a user.
    `source`: credentials instead of those that are found.
    """
    try:
        if files := kubeconfig or (configs.list_files() if os.environ.get("KUBECONFIG") else ()):
            return configs.load(files, choice, agent=component, server=server, source=source)
        return configs.in_cluster(agent=component, server=server, source=source)
    except (configs.BadKubeconfig, OSError) as error:
        raise CommandError(f"cannot connect to an API server: {error}") from error


def connect(kubeconfig: str, component: str, *, server: str = "") -> Client:
    """Raises CommandError."""
    return Client(open_transport(kubeconfig, component, server=server), component=component)
