"""node-fencer: taints nodes whose instance is stopped, so that their volumes are detached at once."""

from volplane.sidecars.fencer.controller import run

__all__ = ["run"]
