"""The options with which a user brings drivers and manifests, for every verb that starts a cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import click

from volplane.api.storage import StorageClass
from volplane.cli.failure import Failure
from volplane.cluster import brought, guest
from volplane.cluster.brought import Brought, Learned
from volplane.cluster.errors import CannotStart
from volplane.cluster.layout import Layout
from volplane.cluster.said import Line, Said, remembered
from volplane.node.programs import repository

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--driver", "drivers", multiple=True, metavar="FILE", help="your CSI driver, described by a file"
    ),
    click.option(
        "--driver-command",
        "commands",
        multiple=True,
        metavar="COMMAND",
        help="command that starts your CSI driver",
    ),
    click.option(
        "--manifest", "manifests", multiple=True, metavar="PATH", help="file or directory of objects to apply"
    ),
    click.option(
        "--image",
        "images",
        multiple=True,
        metavar="IMAGE=COMMAND",
        help="run this program of the machine instead of an image",
    ),
    click.option(
        "--builtin-drivers/--no-builtin-drivers",
        "ours",
        default=None,
        help="run the EBS and EFS drivers; default: only without a driver of your own",
    ),
)


def bring(verb: F) -> F:
    """Give a verb the options; `made(say(**given))` is what they bring."""
    for option in reversed(_OPTIONS):
        verb = option(verb)
    return verb


def say(
    drivers: Sequence[str] = (),
    commands: Sequence[str] = (),
    manifests: Sequence[str] = (),
    images: Sequence[str] = (),
    ours: bool | None = None,
) -> Said:
    """Here and now: paths and programs are found from this directory. Raises CannotStart."""
    return Said(
        drivers=tuple(map(_absolute, drivers)),
        commands=tuple(Line(text, guest.command_of(text)) for text in commands),
        manifests=tuple(map(_absolute, manifests)),
        images=dict(map(brought.mapping, images)),
        ours=ours,
    )


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def made(said: Said) -> Brought:
    """What it comes to: files are read. Raises CannotStart."""
    guests = [guest.read(path) for path in said.drivers]
    guests += [guest.Guest(controller=line.command, node=line.command) for line in said.commands]
    objects = tuple(thing for path in said.manifests for thing in brought.read(path))
    alone = bool(guests) or any(thing["kind"] == "CSIDriver" for thing in objects)
    return Brought(
        guests=tuple(guests),
        manifests=objects,
        images={image: brought.standing(line.command) for image, line in said.images.items()},
        ours=not alone if said.ours is None else said.ours,
        said=said,
    )


def brought_to(directory: str, **given: Any) -> tuple[Brought, bool]:
    """What the options bring; where there is none of them, what the last start on the directory was told.

    And whether it was told then. Raises Failure.
    """
    try:
        if told := say(**given):
            return made(told), False
        layout = Layout(directory)
        told = remembered(layout)
    except CannotStart as error:
        raise Failure(str(error)) from error
    try:
        return made(told), bool(told)
    except CannotStart as error:
        raise Failure(
            f"{error}\n  The last start on {layout.directory} was told {' '.join(told.words())}: say what to"
            " bring instead, or --builtin-drivers for EBS and EFS alone."
        ) from error


def unused(bringing: Brought) -> Iterator[str]:
    """An image that no manifest has may come later; it may be mistyped, too."""
    there = {image for thing in bringing.manifests for image in _images(thing)}
    names = {name for image in there for name in (image, image.partition("@")[0], repository(image))}
    known = ", ".join(sorted(there)) or "none"
    for image in bringing.images if bringing.manifests else ():
        if image not in names:
            yield f"--image {image}: no container of the manifests has this image; they have {known}"


def _images(thing: Any) -> Iterator[str]:
    """Of containers, wherever they stand in it."""
    if isinstance(thing, dict):
        if isinstance(thing.get("image"), str) and "name" in thing:
            yield thing["image"]
        for part in thing.values():
            yield from _images(part)
    elif isinstance(thing, list):
        for part in thing:
            yield from _images(part)


def described(learned: Learned) -> Iterator[str]:
    """What was found out about the drivers, for people."""
    yield from unused(learned.brought)
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
