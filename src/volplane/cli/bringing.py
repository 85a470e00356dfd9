"""The options with which a user brings drivers and manifests, for every verb that starts a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from volplane.api.storage import StorageClass
from volplane.cli.failure import Failure
from volplane.cluster import brought, guest
from volplane.cluster.brought import Brought, Learned
from volplane.cluster.errors import CannotStart

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--driver", "drivers", multiple=True, metavar="FILE", help="a driver of your own, as a file says"
    ),
    click.option("--driver-command", "commands", multiple=True, metavar="COMMAND", help="how to start one"),
    click.option(
        "--manifest", "manifests", multiple=True, metavar="PATH", help="objects to apply at the start"
    ),
    click.option(
        "--image",
        "images",
        multiple=True,
        metavar="IMAGE=COMMAND",
        help="a program of this machine in the place of an image",
    ),
    click.option(
        "--builtin-drivers/--no-builtin-drivers",
        "ours",
        default=None,
        help="EBS and EFS: by default only where no driver is brought",
    ),
)


def bring(verb: F) -> F:
    """Give a verb the options; what they say is `brought_by(**given)`."""
    for option in reversed(_OPTIONS):
        verb = option(verb)
    return verb


def brought_by(
    drivers: tuple[str, ...] = (),
    commands: tuple[str, ...] = (),
    manifests: tuple[str, ...] = (),
    images: tuple[str, ...] = (),
    ours: bool | None = None,
) -> Brought:
    """Raises Failure."""
    try:
        guests = (*map(guest.read, drivers), *map(guest.from_command, commands))
        objects = tuple(thing for path in manifests for thing in brought.read(path))
        mapped = dict(map(brought.program, images))
    except CannotStart as error:
        raise Failure(str(error)) from error
    alone = bool(guests) or any(thing["kind"] == "CSIDriver" for thing in objects)
    return Brought(guests=guests, manifests=objects, images=mapped, ours=not alone if ours is None else ours)


def described(learned: Learned) -> Iterator[str]:
    """What was found out about the drivers, for people."""
    for one, facts in zip(learned.brought.guests, learned.facts, strict=True):
        where = {
            guest.Shape.CENTRAL: "one controller, and the node service on every node",
            guest.Shape.PER_NODE: "one instance on every node, each for its own volumes",
            guest.Shape.ONE_NODE: "one instance, on the first node",
        }[guest.shape(one, facts)]
        yield f"driver {facts.name} {facts.version}".rstrip() + f": {where}"
        can = sorted(facts.plugin | facts.controller | {f"node {name}" for name in facts.node})
        yield f"  it can: {', '.join(can) or 'nothing beyond mounting'}"
        if facts.topology:
            yield f"  topology: {', '.join(sorted(facts.topology))}"
        for made in guest.manifests(one, facts):
            if isinstance(made, StorageClass):
                derived = "" if one.classes else ", derived from its answers"
                yield f"  StorageClass {made.name} ({made.volume_binding_mode or 'Immediate'}{derived})"
