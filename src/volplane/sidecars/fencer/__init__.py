"""node-fencer: a node that is proven to be off gives its volumes up at once. Run it with `run(client, …)`."""

from volplane.sidecars.fencer.controller import run

__all__ = ["run"]
