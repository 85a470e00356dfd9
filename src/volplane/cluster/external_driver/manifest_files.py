"""Find a driver in its own deployment manifests: which container it is, and how to start it without one.

Arguments and environment of the container are kept; pod fields and the path of the socket are replaced by the
variables of an instance. The paths of mounted directories exist only inside a container: a path in an
argument is replaced by one below `$STATE_DIR`, and a directory that no argument names is an error.
"""

from __future__ import annotations

import posixpath
import re
from base64 import b64decode
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from volplane.api.meta import Resource
from volplane.cluster.external_driver.command import FIELDS, for_manifest
from volplane.cluster.external_driver.driver_file import BadField, read_object, with_objects
from volplane.cluster.external_driver.model import Command, ExternalDriver, ImageCommand, InvalidDriver
from volplane.cluster.external_driver.sidecar_flags import keep_author_flags
from volplane.node.image_overrides import SHELLS, image_repository

WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet")
REGISTRAR = "csi-node-driver-registrar"
OF_CONTROLLER = frozenset({"csi-provisioner", "csi-attacher", "csi-resizer", "csi-snapshotter"})
OWN_KINDS = ("CSIDriver", "StorageClass", "VolumeSnapshotClass", "VolumeAttributesClass", "Secret")
# What a driver reads from the API server, beside its own kinds and objects of the kinds that it defines.
READ_KINDS = ("Namespace", "CustomResourceDefinition", "ConfigMap", "ClusterRole")
# Paths that are the same outside a container: directories of the kubelet and of the machine.
KUBELET = "/var/lib/kubelet"
SAME_PATHS = (KUBELET, "/dev", "/sys", "/proc", "/run", "/etc", "/lib/modules", "/usr")
_INSTANCE = {path: name for name, path in reversed(FIELDS.items())}
_SOCKET = re.compile(r"unix:(?://)?(/[^\s,;'\"]+)|(/[^\s,;'\"=]+\.sock)\b")
_REFERENCE = re.compile(r"\$\$\((\w+)\)|\$\((\w+)\)")

Manifest = Mapping[str, Any]


def from_manifests(things: Sequence[Manifest], images: Mapping[str, Command]) -> ExternalDriver:
    """The driver in the manifests: the container whose image is one of `images`. Raises InvalidDriver."""
    known = [(pod, one) for pod in _pods(things) for one in pod["containers"]]
    found = [(pod, one) for pod, one in known if _program_for(one, images)]
    found = [(pod, one) for pod, one in found if _names_socket(one)] or found
    if not found:
        there = ", ".join(sorted({str(one.get("image")) for _, one in known})) or "no containers"
        raise InvalidDriver(
            f"no container has the image {' or '.join(images)} of --image; the manifests have {there}"
        )
    sides: dict[str, Command] = {}
    for pod, container in found:
        for side in _sides(pod):
            sides.setdefault(side, _command(pod, container, images, things))
    if "node" not in sides:
        raise InvalidDriver(f"no pod of the manifests has the driver and a {REGISTRAR}")
    accounts = {pod["serviceAccountName"] for pod, _ in found if pod.get("serviceAccountName")}
    external = ExternalDriver(
        controller=sides.get("controller"),
        node=sides["node"],
        deployed_sidecars=_find_sidecars((pod for pod, _ in found), things),
        resources=tuple(_find_resources(things)),
        cluster_roles=tuple(_find_roles(accounts, things)),
        has_account=bool(accounts),
    )
    try:
        own = [read_object(dict(thing)) for thing in things if thing["kind"] in OWN_KINDS]
        return with_objects(external, _ours(own, things))
    except BadField as error:
        raise InvalidDriver(str(error)) from error


def _ours(objects: list[Resource], things: Sequence[Manifest]) -> list[Resource]:
    """The classes of this driver, if the manifests have several drivers."""
    names = {_name(thing) for thing in things if thing["kind"] == "CSIDriver"}
    return [o for o in objects if not names or getattr(o, "provisioner", None) in (None, *names)]


def _find_resources(things: Sequence[Manifest]) -> Iterator[Manifest]:
    """Objects that the driver may read, those that others need first."""
    definitions = [thing for thing in things if thing["kind"] == "CustomResourceDefinition"]
    defined = {((one.get("spec") or {}).get("names") or {}).get("kind") for one in definitions}
    for kind in READ_KINDS:
        yield from (thing for thing in things if thing["kind"] == kind)
    yield from (thing for thing in things if thing["kind"] in defined)


def _find_roles(accounts: Collection[str], things: Sequence[Manifest]) -> Iterator[str]:
    """The cluster roles of the manifests that are bound to one of the accounts, in the whole cluster."""
    known = {_name(thing) for thing in things if thing["kind"] == "ClusterRole"}
    for thing in things:
        subjects = {one.get("name") for one in thing.get("subjects") or ()}
        role = (thing.get("roleRef") or {}).get("name")
        if thing["kind"] == "ClusterRoleBinding" and role in known and subjects & set(accounts):
            yield role


def _pods(things: Sequence[Manifest]) -> Iterator[Manifest]:
    for thing in things:
        if thing["kind"] in WORKLOADS:
            pod = ((thing.get("spec") or {}).get("template") or {}).get("spec") or {}
            if not pod.get("containers"):
                raise InvalidDriver(
                    f"{thing['kind']} {_name(thing)}: spec.template.spec.containers is missing"
                )
            yield pod


def _name(thing: Manifest) -> str:
    return str((thing.get("metadata") or {}).get("name", ""))


def _program_for(container: Manifest, images: Mapping[str, Command]) -> Command | None:
    image = container.get("image", "")
    return images.get(image) or images.get(image.partition("@")[0]) or images.get(image_repository(image))


def _names_socket(container: Manifest) -> bool:
    values = [str(env.get("value") or "") for env in container.get("env") or ()]
    words = (*(container.get("args") or ()), *(container.get("command") or ()))
    return any(map(_SOCKET.search, (*map(str, words), *values)))


def _sides(pod: Manifest) -> Iterator[str]:
    beside = {image_repository(one.get("image", "")).rpartition("/")[2] for one in pod["containers"]}
    if REGISTRAR in beside:
        yield "node"
    if beside & OF_CONTROLLER:
        yield "controller"


def _find_sidecars(pods: Iterable[Manifest], things: Sequence[Manifest]) -> dict[str, tuple[str, ...]]:
    """The flags of the sidecars beside the driver, by role."""
    made: dict[str, tuple[str, ...]] = {}
    for container in (one for pod in pods for one in pod["containers"]):
        image = image_repository(container.get("image", "")).rpartition("/")[2]
        if image in OF_CONTROLLER:
            known = _environment(container, things)
            words = [for_manifest(_expand(str(word), known)) for word in container.get("args") or ()]
            made.setdefault(image.removeprefix("csi-"), keep_author_flags(words))
    return made


def _command(
    pod: Manifest, container: Manifest, images: Mapping[str, Command], things: Sequence[Manifest]
) -> Command:
    program = _program_for(container, images)
    assert program is not None
    known = _environment(container, things)
    asked = [_expand(word, known) for word in container.get("command") or ()]
    words = [_expand(word, known) for word in container.get("args") or ()]
    if not program.argv:
        return _image_command(pod, container, asked, words, known)
    if asked and posixpath.basename(asked[0]) in SHELLS:
        argv = [*asked, *words]
    else:
        argv = [*program.argv, *asked[1:], *words]
    texts = [*argv, *known.values(), *program.env.values()]
    places = {**_socket(container, texts), **_directories(pod, container, texts)}
    return Command(
        tuple(_replace_paths(word, places) for word in argv),
        {name: _replace_paths(value, places) for name, value in {**program.env, **known}.items()},
        program.directory,
    )


def _image_command(
    pod: Manifest, container: Manifest, asked: Sequence[str], words: Sequence[str], known: Mapping[str, str]
) -> Command:
    """The driver in its own image: its directories are where the manifests mount them."""
    places = _socket(container, [*asked, *words, *known.values()])
    sockets = {posixpath.dirname(path) for path in places}
    volumes = {volume["name"]: volume for volume in pod.get("volumes") or ()}
    directories, host_paths = {}, {}
    for mount in container.get("volumeMounts") or ():
        path, volume = mount["mountPath"].rstrip("/") or "/", volumes.get(mount["name"], {})
        if path in sockets or _is_below(path, (KUBELET,)):
            continue
        source = str((volume.get("hostPath") or {}).get("path", ""))
        if source and _is_below(source, SAME_PATHS) and not _is_below(source, (KUBELET,)):
            host_paths[path] = source
        elif "hostPath" in volume or "emptyDir" in volume:
            directories[path] = str(mount["name"])
    return Command(
        tuple(_replace_paths(word, places) for word in words),
        {name: _replace_paths(value, places) for name, value in known.items()},
        container=ImageCommand(
            str(container["image"]),
            tuple(_replace_paths(word, places) for word in asked),
            bool((container.get("securityContext") or {}).get("privileged")),
            directories,
            host_paths,
        ),
    )


def _is_below(path: str, places: Iterable[str]) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in places)


def _environment(container: Manifest, things: Sequence[Manifest]) -> dict[str, str]:
    """The environment of the container. Raises InvalidDriver."""
    who = f"container {container.get('name', '')}"
    known: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        known |= _read_env_from(who, source, things)
    for env in container.get("env") or ():
        name, given = env["name"], env.get("valueFrom") or {}
        field = (given.get("fieldRef") or {}).get("fieldPath")
        if field in _INSTANCE:
            known[name] = f"${{{_INSTANCE[field]}}}"
        elif not given:
            known[name] = _expand(str(env.get("value") or ""), known)
        elif (value := _resolve_reference(given, things)) is not None:
            known[name] = _literal(value)
        elif not any((one or {}).get("optional") for one in given.values()):
            raise InvalidDriver(
                f"{who}: the source of {name} is not in the manifests: {_describe_source(given)}"
            )
    return known


def _read_env_from(who: str, source: Manifest, things: Sequence[Manifest]) -> dict[str, str]:
    """The variables of an `envFrom` ConfigMap or Secret. Raises InvalidDriver."""
    field, kind = ("secretRef", "Secret") if "secretRef" in source else ("configMapRef", "ConfigMap")
    wanted, prefix = source.get(field) or {}, source.get("prefix") or ""
    values = _values(kind, wanted, things)
    if values is None and not wanted.get("optional"):
        raise InvalidDriver(f"{who}: envFrom: the manifests have no {kind} {wanted.get('name', '')}")
    return {f"{prefix}{name}": _literal(text) for name, text in (values or {}).items()}


def _literal(text: str) -> str:
    return text.replace("$", "$$")


def _describe_source(source: Manifest) -> str:
    field, wanted = next(iter(source.items()))
    return " ".join(filter(None, (field, *map(str, (wanted or {}).values()))))


def _resolve_reference(source: Manifest, things: Sequence[Manifest]) -> str | None:
    for field, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
        if wanted := source.get(field):
            return (_values(kind, wanted, things) or {}).get(wanted.get("key"))
    return None


def _values(kind: str, wanted: Manifest, things: Sequence[Manifest]) -> dict[str, str] | None:
    """The values of a ConfigMap or Secret in the manifests. Raises InvalidDriver."""
    for thing in things:
        if thing["kind"] != kind or _name(thing) != wanted.get("name"):
            continue
        data = {str(key): str(value) for key, value in (thing.get("data") or {}).items()}
        if kind == "Secret":
            data = {key: _decode_secret(_name(thing), key, value) for key, value in data.items()}
            data |= {str(key): str(value) for key, value in (thing.get("stringData") or {}).items()}
        return data
    return None


def _decode_secret(secret: str, key: str, value: str) -> str:
    try:
        return b64decode(value, validate=True).decode()
    except ValueError as error:
        raise InvalidDriver(f"Secret {secret}: data.{key} is not text in base64") from error


def _expand(text: str, known: Mapping[str, str]) -> str:
    """Expand `$(NAME)` like the kubelet; every other dollar sign is literal."""
    made, end = "", 0
    for match in _REFERENCE.finditer(text):
        made += text[end : match.start()].replace("$", "$$")
        escaped, name = match[1], match[2]
        made += f"$$({escaped})" if escaped else known.get(name, f"$$({name})")
        end = match.end()
    return made + text[end:].replace("$", "$$")


def _socket(container: Manifest, texts: Sequence[str]) -> dict[str, str]:
    for text in texts:
        if match := _SOCKET.search(text):
            return {match[1] or match[2]: "${CSI_SOCKET}"}
    if any("${CSI_SOCKET}" in text or "${CSI_ENDPOINT}" in text for text in texts):
        return {}
    raise InvalidDriver(f"container {container['name']}: no argument or variable has the path of its socket")


def _directories(pod: Manifest, container: Manifest, texts: Sequence[str]) -> dict[str, str]:
    """Replacements for the paths of the driver's mounted directories."""
    sockets = {posixpath.dirname(match[1] or match[2]) for t in texts for match in _SOCKET.finditer(t)}
    volumes = {volume["name"]: volume for volume in pod.get("volumes") or ()}
    made, unnamed = {}, []
    for mount in container.get("volumeMounts") or ():
        path = mount["mountPath"].rstrip("/") or "/"
        kept = "hostPath" in volumes.get(mount["name"], {}) or "emptyDir" in volumes.get(mount["name"], {})
        if not kept or path in sockets or _is_below(path, SAME_PATHS):
            continue
        if any(re.search(rf"(?<![\w.-]){re.escape(path)}(?![\w.-])", text) for text in texts):
            made[path] = f"${{STATE_DIR}}/{mount['name']}"
        else:
            unnamed.append(path)
    if unnamed and not any("${STATE_DIR}" in text or "${SHARED_DIR}" in text for text in texts):
        raise InvalidDriver(
            f"container {container['name']}: {unnamed[0]} is mounted, but no argument names it. Outside a"
            " container the path is different: pass it to the driver, as in --image"
            f" '{container['image']}=mydriver --state-dir=$STATE_DIR'"
        )
    return made


def _replace_paths(text: str, places: Mapping[str, str]) -> str:
    for path, name in places.items():
        text = re.sub(rf"(?<![\w.-]){re.escape(path)}(?![\w.-])", lambda _, name=name: name, text)  # type: ignore[misc]
    return text
