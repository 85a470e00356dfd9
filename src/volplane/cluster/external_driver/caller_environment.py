"""The caller's environment, which a driver's command gets as if it had been started in the same shell.

Variables that describe the caller's session, and those that the cluster sets itself, are left out. What is
left may be secret, so a Secret carries it to the driver's pods.
"""

from __future__ import annotations

from collections.abc import Mapping

from volplane.cluster.external_driver.command import INSTANCE

SECRET = "environment"
_SESSION = frozenset(
    {
        "_",
        "COLUMNS",
        "DISPLAY",
        "EDITOR",
        "HISTFILE",
        "HOME",
        "HOSTNAME",
        "KUBECONFIG",
        "LINES",
        "LOGNAME",
        "LS_COLORS",
        "MAIL",
        "OLDPWD",
        "PAGER",
        "PATH",
        "PS1",
        "PWD",
        "SHELL",
        "SHLVL",
        "TERM",
        "TMPDIR",
        "USER",
        "VIRTUAL_ENV",
    }
)
_PREFIXES = ("BASH_", "COV_", "DBUS_", "KUBERNETES_", "LC_", "PYTEST", "SSH_", "SUDO_", "VOLPLANE_", "XDG_")

# Prefixes of variables that choose an account or an endpoint of AWS.
_CLOUD = (
    "AWS_ACCESS_KEY_ID",
    "AWS_CONTAINER_",
    "AWS_EC2_ENDPOINT",
    "AWS_ENDPOINT_URL",
    "AWS_PROFILE",
    "AWS_ROLE_ARN",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
)


def select_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.isidentifier()
        and name not in _SESSION
        and name not in INSTANCE
        and not name.startswith(_PREFIXES)
    }


def add_cloud(variables: Mapping[str, str], cloud: Mapping[str, str]) -> dict[str, str]:
    """Add the variables of the disk service, unless the caller has chosen an account or an endpoint."""
    if any(name.startswith(_CLOUD) for name in variables):
        return dict(variables)
    return {**cloud, **variables}
