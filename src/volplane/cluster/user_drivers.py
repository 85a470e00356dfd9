"""What a user adds to a cluster: drivers, manifests, and programs that replace images.

Objects are applied as written, unknown fields included, so a restart with another command or manifest changes
the existing objects.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import yaml
from msgspec import Struct, structs

from volplane.api import codec, kinds
from volplane.api.apiextensions import CustomResourceDefinition
from volplane.api.errors import APIError, Invalid, NotFound
from volplane.api.meta import Resource
from volplane.client.https import HttpsTransport
from volplane.client.transport import PatchStyle
from volplane.cluster import external_driver, kustomize
from volplane.cluster.apply import WAIT_TIMEOUT, find_kind
from volplane.cluster.errors import CannotStart
from volplane.cluster.external_driver import host_paths
from volplane.cluster.external_driver.caller_environment import add_cloud
from volplane.cluster.external_driver.command import for_manifest
from volplane.cluster.external_driver.discover import ProbeSurroundings
from volplane.cluster.external_driver.model import Command, DiscoveredDriver, ExternalDriver
from volplane.cluster.readiness import ExpectedDriver, WorkloadRef
from volplane.cluster.saved_options import CommandLine, SavedOptions
from volplane.cluster.sidecar_roles import find_grants
from volplane.host import Host
from volplane.node.image_overrides import ImageOverride, ImageOverrides

OWN_IMAGE = "volplane/volplane"  # of all roles, see deploy/Dockerfile
PAUSE = 0.02  # seconds between two tries
FIELD_MANAGER = "volplane"  # of server-side apply
SUFFIXES = (".yaml", ".yml", ".json")
Manifest = dict[str, Any]


class BadManifest(CannotStart):
    """A file is not a manifest, or the API server rejects an object. The message says which, and why."""


class BadImage(CannotStart):
    """An invalid --image option."""


class BadImageSyntax(BadImage):
    """An --image option that is not IMAGE=COMMAND."""


class UserDrivers(Struct, frozen=True, kw_only=True):
    """The user's drivers, manifests and programs, as read from the options."""

    drivers: tuple[ExternalDriver, ...] = ()
    manifests: tuple[Manifest, ...] = ()
    images: Mapping[str, ImageOverride] = {}  # programs that replace images
    builtin: bool = True  # also run the built-in drivers
    options: SavedOptions = SavedOptions()  # saved for the next start
    facts: tuple[DiscoveredDriver, ...] = ()  # the drivers' answers, if they are known; else they are started

    @property
    def programs(self) -> dict[str, ImageOverride]:
        """All programs that replace images, those of driver files and this one included."""
        own = {image: program_for(c) for external in self.drivers for image, c in external.images.items()}
        return {OWN_IMAGE: own_program(), **own, **self.images}

    def with_cloud(self, variables: Mapping[str, str]) -> UserDrivers:
        """The same, with the variables of the disk service in the drivers' environments."""
        drivers = [
            structs.replace(one, environment=add_cloud(one.environment, variables)) for one in self.drivers
        ]
        return structs.replace(self, drivers=tuple(drivers))

    @property
    def may_snapshot_on_nodes(self) -> bool:
        """Whether a snapshotter may run on every node (`--node-deployment`): it takes labelled contents only.

        Only discovery tells how a driver is deployed, and the controllers start before. Other snapshotters
        ignore the label.
        """
        return bool(self.drivers or self.manifests)


NO_USER_DRIVERS = UserDrivers()


def parse_image_program(text: str) -> tuple[str, ImageOverride]:
    """Parse `registry/name[:tag]=path or command`: an image, and the program that replaces it. Raises
    BadImage.
    """
    image, line = parse_image_option(text)
    return image, program_for(line.command)


def parse_image_option(text: str) -> tuple[str, CommandLine]:
    """Parse the same into a command, in the current directory and environment. Without a command it is
    the image itself. Raises BadImage, BadImageSyntax.
    """
    image, equals, line = text.partition("=")
    if not image or (equals and not line):
        raise BadImageSyntax(f'--image is registry/name=path-or-command, or registry/name, not "{text}"')
    if not line:
        return image, CommandLine("", Command(()))
    try:
        return image, CommandLine(line, external_driver.parse_command(line, os.getcwd()))
    except external_driver.BadCommand as error:
        raise BadImage(f"--image {image}: {error}") from error


def own_program() -> ImageOverride:
    """This program, for the containers of our own chart."""
    return program_for(Command((sys.executable, "-m", "volplane")))


def check_own_images(images: Mapping[str, CommandLine], endpoint: str) -> None:
    """Raises BadImageSyntax if images run themselves and there is no container runtime."""
    own = [image for image, line in images.items() if not line.text]
    if own and not endpoint:
        raise BadImageSyntax(
            f"--image {own[0]} has no command: give {own[0]}=path-or-command, or "
            "--container-runtime-endpoint to run the image itself"
        )


def program_for(command: Command) -> ImageOverride:
    """The program for a command. The node expands its variables, as in a container's arguments."""
    if not command.argv:
        return ImageOverride(())
    argv = tuple(map(for_manifest, command.argv))
    env = {name: for_manifest(value) for name, value in command.env.items()}
    return ImageOverride(argv, env, command.directory, host_paths.hidden_paths(command))


# --- read


def read_manifests(path: str | Path) -> list[Manifest]:
    """The objects of a file, or of all files of a directory in order of their names. A directory with a
    kustomization is rendered. Raises CannotStart.
    """
    source = Path(path).expanduser()
    if not source.exists():
        raise BadManifest(f"{path} does not exist")
    if source.is_dir() and kustomize.is_kustomization(source):
        return list(parse_manifests(kustomize.render(source), str(path)))
    files = [source] if source.is_file() else sorted(p for p in source.iterdir() if p.suffix in SUFFIXES)
    found = [obj for file in files for obj in _objects(file)]
    if not found:
        raise BadManifest(f"{path} has no objects")
    return found


def _objects(file: Path) -> Iterator[Manifest]:
    try:
        text = file.read_text()
    except UnicodeDecodeError as error:
        raise BadManifest(f"{file} is not text, but a manifest must be") from error
    except OSError as error:
        raise BadManifest(f"{file}: {error}") from error
    yield from parse_manifests(text, str(file))


def parse_manifests(text: str, source: str) -> Iterator[Manifest]:
    """The objects of a YAML text; `source` names it in errors. Raises BadManifest."""
    try:
        documents = list(yaml.load_all(text, Loader=yaml.CSafeLoader))
    except yaml.YAMLError as error:
        raise BadManifest(f"{source}: {error}") from error
    for document in documents:
        if document is None:
            continue
        if not isinstance(document, dict) or not document.get("kind") or not document.get("apiVersion"):
            raise BadManifest(f"{source}: an object without kind and apiVersion")
        if document["kind"] == "Kustomization":
            continue
        if document["kind"] == "List":
            yield from document.get("items") or ()
        else:
            yield document


# --- discover


class DiscoveredDrivers(Struct, frozen=True):
    """The user's drivers with their discovered capabilities."""

    user_drivers: UserDrivers
    facts: tuple[DiscoveredDriver, ...] = ()

    def manifests(self, shared: str) -> list[Manifest]:
        """All objects to apply. Without built-in drivers, the first driver's class is the default."""
        made: list[Manifest] = []
        for number, (external, facts) in enumerate(zip(self.user_drivers.drivers, self.facts, strict=True)):
            default = number == 0 and not self.user_drivers.builtin
            directory = f"{shared}/{facts.name}"
            objects = external_driver.build_manifests(external, facts, shared=directory, default=default)
            made += [*map(dict, external.resources), *map(to_manifest, objects)]
        grants = find_grants(self.user_drivers.manifests, ImageOverrides(self.user_drivers.programs))
        return made + sorted((*grants, *self.user_drivers.manifests), key=_rank)

    def expected_drivers(self, nodes: Sequence[str]) -> list[ExpectedDriver]:
        pairs = zip(self.user_drivers.drivers, self.facts, strict=True)
        found = [external_driver.expected_driver(external, facts, nodes) for external, facts in pairs]
        return found + [e for m in self.user_drivers.manifests if (e := _expected_workload(m)) is not None]


async def discover_drivers(
    user_drivers: UserDrivers, host: Host, surroundings: ProbeSurroundings | None = None
) -> DiscoveredDrivers:
    """Start every driver and query its capabilities. Raises InvalidDriver."""
    facts = list(user_drivers.facts) or [
        await external_driver.discover_driver(external, host=host, surroundings=surroundings)
        for external in user_drivers.drivers
    ]
    for external, found in zip(user_drivers.drivers, facts, strict=True):
        # Raises for an impossible deployment, before anything is created.
        external_driver.resolve_shape(external, found)
    names = [fact.name for fact in facts]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise external_driver.InvalidDriver(f"two drivers have the name {twice}")
    return DiscoveredDrivers(user_drivers, tuple(facts))


def to_manifest(obj: Resource) -> Manifest:
    made: Manifest = msgspec.json.decode(codec.encode(obj))
    return made


# Objects that others need come first, whichever file they are in.
_FIRST = (
    "Namespace",
    "CustomResourceDefinition",
    "ServiceAccount",
    "Secret",
    "ConfigMap",
    "ClusterRole",
    "Role",
)


def _rank(data: Mapping[str, Any]) -> int:
    return _FIRST.index(data["kind"]) if data["kind"] in _FIRST else len(_FIRST)


def _expected_workload(data: Mapping[str, Any]) -> ExpectedDriver | None:
    """A workload of a manifest to wait for, since its pods may belong to a driver."""
    if data["kind"] not in ("Deployment", "StatefulSet", "DaemonSet"):
        return None
    if data["kind"] != "DaemonSet" and data.get("spec", {}).get("replicas") == 0:
        return None
    meta = data["metadata"]
    namespace = meta.get("namespace") or "default"
    return ExpectedDriver(workload=WorkloadRef(data["kind"], namespace, meta["name"]), namespace=namespace)


# --- apply


async def apply(transport: HttpsTransport, manifests: Sequence[Manifest]) -> None:
    """Apply all objects. Raises BadManifest."""
    paths = _ResourcePaths(transport)
    for manifest in manifests:
        try:
            await _apply(transport, paths, manifest)
        except APIError as error:
            raise BadManifest(f"{_describe(manifest)} is refused: {error.message}") from error


def _describe(data: Mapping[str, Any]) -> str:
    return f"{data['kind']} {(data.get('metadata') or {}).get('name', '')}".strip()


async def _apply(transport: HttpsTransport, paths: _ResourcePaths, data: Manifest) -> None:
    path = await paths.path(data)
    body = msgspec.json.encode(data)
    query = f"?fieldManager={FIELD_MANAGER}&force=true"
    try:
        async with asyncio.timeout(WAIT_TIMEOUT):
            while True:
                try:
                    await transport.raw("PATCH", path + query, body, PatchStyle.APPLY)
                    return
                except NotFound:  # its definition or namespace was created a moment ago
                    if not await paths.is_being_defined(data):
                        raise
                await asyncio.sleep(PAUSE)
    except Invalid:
        if data["kind"] not in ("StorageClass", "CSIDriver", "VolumeSnapshotClass"):
            raise
    # Objects that describe a driver are immutable, and can be deleted and created again without loss.
    await transport.raw("DELETE", path)
    await transport.raw("PATCH", path + query, body, PatchStyle.APPLY)


class _ResourcePaths:
    """API paths of objects; of custom resources by their definitions."""

    def __init__(self, transport: HttpsTransport) -> None:
        self._transport = transport

    async def path(self, data: Mapping[str, Any]) -> str:
        meta = data.get("metadata") or {}
        if not meta.get("name"):
            raise BadManifest(f"{data['kind']} without a name")
        version, kind = data["apiVersion"], data["kind"]
        if known := find_kind(version, kind):
            return known.path(_namespace(meta) if known.namespaced else "", meta["name"])
        definition = await self._definition(version, kind)
        if definition is None:
            raise BadManifest(f"{_describe(data)}: {version} {kind} is not served here")
        space = f"/namespaces/{_namespace(meta)}" if definition.spec.scope == "Namespaced" else ""
        return f"/apis/{version}{space}/{definition.spec.names.plural}/{quote(meta['name'])}"

    async def _definition(self, version: str, kind: str) -> CustomResourceDefinition | None:
        group = version.rpartition("/")[0]
        for one in (await self._transport.list(CustomResourceDefinition)).items:
            if one.spec.group == group and one.spec.names.kind == kind:
                return one
        return None

    async def is_being_defined(self, data: Mapping[str, Any]) -> bool:
        version, kind = data["apiVersion"], data["kind"]
        if kinds.by_kind(version, kind):
            return False
        return await self._definition(version, kind) is not None


def _namespace(meta: Mapping[str, Any]) -> str:
    return str(meta.get("namespace") or "default")
