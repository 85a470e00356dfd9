"""The options for drivers and manifests of the user, for every verb that starts a cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import click
from msgspec import structs

from volplane.api.storage import StorageClass
from volplane.cli.error import CommandError
from volplane.cluster import external_driver, user_drivers
from volplane.cluster.data_directory import DataDirectory
from volplane.cluster.errors import CannotStart
from volplane.cluster.external_driver.caller_environment import select_variables
from volplane.cluster.saved_options import CommandLine, SavedOptions, SavedRuntime, load_options
from volplane.cluster.user_drivers import BadImageSyntax, DiscoveredDrivers, UserDrivers
from volplane.node.image_overrides import image_repository

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
        metavar="IMAGE[=COMMAND]",
        help="run this command instead of the image; without a command the image, not a built-in sidecar",
    ),
    click.option(
        "--builtin-drivers/--no-builtin-drivers",
        "ours",
        default=None,
        help="run the EBS and EFS drivers; default: only without a driver of your own",
    ),
)


def add_driver_options(verb: F) -> F:
    """Add the options to a verb; `load_user_drivers(collect_options(**given))` evaluates them."""
    for option in reversed(_OPTIONS):
        verb = option(verb)
    return verb


def collect_options(
    drivers: Sequence[str] = (),
    commands: Sequence[str] = (),
    manifests: Sequence[str] = (),
    images: Sequence[str] = (),
    ours: bool | None = None,
) -> SavedOptions:
    """Resolve paths and programs from the current directory. Raises CannotStart."""
    return SavedOptions(
        drivers=tuple(map(_absolute, drivers)),
        commands=tuple(CommandLine(text, external_driver.parse_driver_command(text)) for text in commands),
        manifests=tuple(map(_absolute, manifests)),
        images=dict(map(user_drivers.parse_image_option, images)),
        ours=ours,
    )


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def load_user_drivers(options: SavedOptions) -> UserDrivers:
    """Read the files of the options. Raises CannotStart."""
    external_drivers = [external_driver.read_driver_file(path) for path in options.drivers]
    environment = select_variables(os.environ)
    external_drivers += [
        external_driver.ExternalDriver(controller=line.command, node=line.command, environment=environment)
        for line in options.commands
    ]
    objects = tuple(obj for path in options.manifests for obj in user_drivers.read_manifests(path))
    has_own_driver = bool(external_drivers) or any(obj["kind"] == "CSIDriver" for obj in objects)
    return UserDrivers(
        drivers=tuple(external_drivers),
        manifests=objects,
        images={image: user_drivers.program_for(line.command) for image, line in options.images.items()},
        builtin=not has_own_driver if options.ours is None else options.ours,
        options=options,
    )


def resolve_user_drivers(directory: str, **given: Any) -> tuple[UserDrivers, bool]:
    """The user's drivers from the options or, without options, from those of the last start on the directory.

    Returns also whether they are from the last start. Raises CommandError.
    """
    try:
        if saved := collect_options(**given):
            return load_user_drivers(saved), False
        layout = DataDirectory(directory)
        saved = structs.replace(load_options(layout), runtime=SavedRuntime())
    except BadImageSyntax as error:
        raise click.UsageError(str(error)) from error
    except CannotStart as error:
        raise CommandError(str(error)) from error
    try:
        return load_user_drivers(saved), bool(saved)
    except CannotStart as error:
        raise CommandError(
            f"{error}\n  The last start on {layout.directory} had the options "
            f"{' '.join(saved.command_words())}: give others, "
            "or --builtin-drivers for EBS and EFS only."
        ) from error


def find_unused_images(drivers: UserDrivers) -> Iterator[str]:
    """Warnings about --image options that match no manifest: they may be mistyped."""
    used = {image for manifest in drivers.manifests for image in _images(manifest)}
    names = {name for image in used for name in (image, image.partition("@")[0], image_repository(image))}
    known = ", ".join(sorted(used)) or "none"
    for image in drivers.images if drivers.manifests else ():
        if image not in names:
            yield f"--image {image}: no container of the manifests has this image; they have {known}"


def _images(part: Any) -> Iterator[str]:
    """The images of all containers in an object."""
    if isinstance(part, dict):
        if isinstance(part.get("image"), str) and "name" in part:
            yield part["image"]
        for value in part.values():
            yield from _images(value)
    elif isinstance(part, list):
        for item in part:
            yield from _images(item)


def describe_drivers(learned: DiscoveredDrivers) -> Iterator[str]:
    """Describe the discovered drivers to the user."""
    yield from find_unused_images(learned.user_drivers)
    for one, facts in zip(learned.user_drivers.drivers, learned.facts, strict=True):
        where = {
            external_driver.DeploymentShape.CENTRAL: "one controller, and the node service on every node",
            external_driver.DeploymentShape.PER_NODE: "one instance on every node, each for its own volumes",
            external_driver.DeploymentShape.ONE_NODE: "one instance, on the first node",
        }[external_driver.resolve_shape(one, facts)]
        yield f"driver {facts.name} {facts.version}".rstrip() + f": {where}"
        capabilities = sorted(facts.plugin | facts.controller | {f"node {name}" for name in facts.node})
        yield f"  capabilities: {', '.join(capabilities) or 'none; it only mounts'}"
        if facts.topology:
            yield f"  topology: {', '.join(sorted(facts.topology))}"
        for made in external_driver.build_manifests(one, facts):
            if isinstance(made, StorageClass):
                derived = "" if one.classes else ", derived from its capabilities"
                yield f"  StorageClass {made.name} ({made.volume_binding_mode or 'Immediate'}{derived})"
