"""OCI images made from files of this machine, so that a test needs no registry outside of it.

`from_programs` copies programs with the libraries that they need; `busybox` is Debian's static busybox with
a link for each of its commands. The same input gives the same digest.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, structs

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
DIRECTORIES = ("dev", "etc", "proc", "root", "run", "sys", "tmp", "usr/bin", "usr/sbin", "var/lib", "var/run")
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

PASSWD = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"
GROUP = "root:x:0:\nnogroup:x:65534:\n"


class Layer(Struct, frozen=True):
    """A tar archive, with the digests that a manifest and a configuration name it by."""

    data: bytes  # compressed
    diff_id: str  # of the data that is not compressed

    @property
    def digest(self) -> str:
        return digest(self.data)


class OciImage(Struct, frozen=True):
    layers: tuple[Layer, ...]
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    user: str = ""
    workdir: str = ""
    volumes: tuple[str, ...] = ()
    stop_signal: str = ""

    @property
    def config(self) -> bytes:
        env = {"PATH": SEARCH_PATH, **self.env}
        run = {
            "Entrypoint": self.entrypoint,
            "Cmd": self.command,
            "Env": [f"{name}={value}" for name, value in env.items()],
            "User": self.user,
            "WorkingDir": self.workdir,
            "Volumes": {path: {} for path in self.volumes},
            "StopSignal": self.stop_signal,
        }
        return to_json(
            {
                "architecture": ARCHITECTURE,
                "os": "linux",
                "config": {name: value for name, value in run.items() if value},
                "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in self.layers]},
            }
        )

    @property
    def manifest(self) -> bytes:
        return to_json(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": describe(CONFIG, self.config),
                "layers": [describe(LAYER, layer.data) for layer in self.layers],
            }
        )

    @property
    def digest(self) -> str:
        return digest(self.manifest)

    @property
    def blobs(self) -> list[bytes]:
        return [self.config, *(layer.data for layer in self.layers)]

    def add_layer(self, layer: Layer) -> OciImage:
        return structs.replace(self, layers=(*self.layers, layer))

    def add_files(self, files: Mapping[str, str | bytes]) -> OciImage:
        return self.add_layer(build_layer(files=files))


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def to_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def describe(media_type: str, data: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": digest(data), "size": len(data)}


def build_layer(
    *,
    files: Mapping[str, str | bytes] = {},
    copies: Mapping[str, Path] = {},
    links: Mapping[str, str] = {},
    directories: Mapping[str, int] = {},  # path: mode
    owners: Mapping[str, int] = {},  # path: user and group
) -> Layer:
    """A layer of new files, copies of files of this machine, links and directories."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for path, mode in sorted(directories.items()):
            _add(archive, path, tarfile.DIRTYPE, mode, owners)
        for path, content in sorted(files.items()):
            content = content.encode() if isinstance(content, str) else content
            mode = 0o755 if content.startswith(b"#!") else 0o644
            _add(archive, path, tarfile.REGTYPE, mode, owners, content)
        for path, source in sorted(copies.items()):
            _add(archive, path, tarfile.REGTYPE, source.stat().st_mode & 0o777, owners, source.read_bytes())
        for path, target in sorted(links.items()):
            _add(archive, path, tarfile.SYMTYPE, 0o777, owners, link=target)
    return Layer(gzip.compress(data.getvalue(), 1, mtime=0), digest(data.getvalue()))


def _add(
    archive: tarfile.TarFile,
    path: str,
    kind: bytes,
    mode: int,
    owners: Mapping[str, int],
    content: bytes = b"",
    link: str = "",
) -> None:
    entry = tarfile.TarInfo(path.lstrip("/"))
    entry.type, entry.mode, entry.size, entry.linkname = kind, mode, len(content), link
    entry.uid = entry.gid = owners.get(path, 0)
    archive.addfile(entry, io.BytesIO(content))


def base_layer() -> Layer:
    """The directories of a root file system, users, and busybox with a link for each command."""
    busybox = Path(shutil.which("busybox") or "/bin/busybox")
    commands = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    return build_layer(
        directories={**dict.fromkeys(DIRECTORIES, 0o755), "tmp": 0o1777},
        files={
            "etc/passwd": PASSWD,
            "etc/group": GROUP,
        },
        copies={"usr/bin/busybox": busybox},
        links={
            **{f"usr/bin/{name}": "busybox" for name in commands if name != "busybox"},
            **{name: f"usr/{name}" for name in ("bin", "sbin")},
            **{name: f"usr/{name}" for name in ("lib", "lib64")},
        },
    )


def busybox() -> OciImage:
    return OciImage((base_layer(),), command=("sh",))


def pause() -> OciImage:
    """The image of a pod's sandbox: a process that only waits."""
    return OciImage((base_layer(),), entrypoint=("/bin/sleep", "infinity"))


def list_libraries(programs: Iterable[Path]) -> set[Path]:
    """The shared libraries of programs, with the program that loads them."""
    found = set()
    for program in programs:
        done = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
        found |= {Path(path) for path in re.findall(r"(/\S+) \(0x", done.stdout)}
    return found


def copy_programs(programs: Sequence[Path]) -> dict[str, Path]:
    """Programs and their libraries, as `copies` of a layer."""
    paths = {*programs, *list_libraries(programs)}
    return {_merge_usr(path): path.resolve() for path in paths}


def _merge_usr(path: Path) -> str:
    """/lib and /bin are links to /usr/lib and /usr/bin in our images."""
    parts = path.parts[1:]
    return "/".join(parts if parts[0] not in ("bin", "sbin", "lib", "lib64") else ("usr", *parts))


def from_programs(*programs: Path | str, entrypoint: Sequence[str] = ()) -> OciImage:
    """An image with programs of this machine, beside busybox; the first one is run."""
    paths = [Path(program) for program in programs]
    layer = build_layer(copies=copy_programs(paths))
    return OciImage((base_layer(), layer), entrypoint=tuple(entrypoint) or (os.path.abspath(paths[0]),))


def from_peer(program: str, *tools: str) -> OciImage:
    """A program of others in the root directory, as the entrypoint, with tools of this machine."""
    paths = [program, *(shutil.which(tool) or tool for tool in tools)]
    name = os.path.basename(program)
    made = from_programs(*paths, entrypoint=[f"/{name}"])
    return made.add_layer(build_layer(links={name: program}))


def nginx() -> OciImage:
    """Debian's nginx with upstream's layout: pages in /usr/share/nginx/html, logs on the standard streams."""
    return OciImage(
        (
            base_layer(),
            build_layer(copies={**copy_programs([Path("/usr/sbin/nginx")]), **_copy_tree("/etc/nginx")}),
            build_layer(
                directories={
                    **dict.fromkeys(("usr/share/nginx/html", "var/log/nginx", "var/lib/nginx"), 0o755),
                },
                files={
                    "etc/nginx/nginx.conf": NGINX_CONF,
                    "usr/share/nginx/html/index.html": "<h1>Welcome to nginx!</h1>\n",
                },
                links={
                    "var/log/nginx/access.log": "/dev/stdout",
                    "var/log/nginx/error.log": "/dev/stderr",
                },
            ),
        ),
        command=("nginx", "-g", "daemon off;"),
        stop_signal="SIGQUIT",
    )


NGINX_CONF = """user nobody nogroup;
worker_processes 1;
events { worker_connections 64; }
http {
    include mime.types;
    server { listen 80; location / { root /usr/share/nginx/html; index index.html; } }
}
"""


def _copy_tree(root: str) -> dict[str, Path]:
    return {str(path.relative_to("/")): path for path in Path(root).rglob("*") if path.is_file()}


def postgres() -> OciImage:
    """Debian's PostgreSQL: its programs, libraries and shared files, with a user of its own."""
    (programs,) = sorted(Path("/usr/lib/postgresql").glob("*/bin"))[-1:]
    version = programs.parent.name
    # The compiler of queries is left out: it is optional, and needs LLVM, most of 90 MB.
    modules = [path for path in (programs.parent / "lib").glob("*.so") if path.name != "llvmjit.so"]
    copies = {
        **copy_programs([p for p in programs.iterdir() if p.is_file()]),
        **{str(path.relative_to("/")): path for path in modules},
        **{_merge_usr(path): path.resolve() for path in list_libraries(modules)},
        **_copy_tree(f"/usr/share/postgresql/{version}"),
        **_copy_tree("/usr/share/zoneinfo"),
        **_copy_tree("/usr/lib/locale/C.utf8"),
    }
    users = build_layer(
        files={
            "etc/passwd": f"{PASSWD}postgres:x:999:999:postgres:/var/lib/postgresql:/bin/sh\n",
            "etc/group": f"{GROUP}postgres:x:999:\n",
        },
        directories={"var/lib/postgresql": 0o755, "var/run/postgresql": 0o2777},
        owners={"var/lib/postgresql": 999, "var/run/postgresql": 999},
    )
    return OciImage(
        (base_layer(), build_layer(copies=copies), users),
        command=("postgres",),
        env={"PATH": f"{programs}:{SEARCH_PATH}", "PGDATA": "/var/lib/postgresql/data"},
        user="999:999",
        stop_signal="SIGINT",
    )
