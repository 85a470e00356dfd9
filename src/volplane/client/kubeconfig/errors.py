"""The errors of a kubeconfig."""


class BadKubeconfig(ValueError):
    """The files do not say how to reach a server, or how to log in."""
