"""Debian's docker-registry on loopback, with or without a password, and a client that pushes to it."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.cri.image import MANIFEST, OciImage, digest
from tests.support.etcd import free_port
from tests.support.up import wait_until

USER, PASSWORD = "puller", "correct horse"
# bcrypt, the only kind of password that the registry accepts
HTPASSWD = f"{USER}:$2b$05$UlLFXhn8WOEgBfAlxNqfFuzFJb9QDp4iALYFl3n5iomw4bxI3GA.C\n"
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Registry:
    """One process. `start` and `stop` may be repeated: the images stay, and so does the port."""

    def __init__(self, directory: Path, *, password: bool = False) -> None:
        self.directory = directory
        self.password = password
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    # --- start and stop

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "htpasswd").write_text(HTPASSWD)
        config = self.directory / "config.yml"
        config.write_text(json.dumps(self._configure()))  # JSON is YAML
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["docker-registry", "serve", str(config)], stdout=log, stderr=log
            )
        wait_until(f"the registry {self.host} answers", self._answers, 20)

    def _configure(self) -> dict[str, object]:
        htpasswd = {"htpasswd": {"realm": "test", "path": str(self.directory / "htpasswd")}}
        return {
            "version": 0.1,
            "log": {"level": "info", "accesslog": {"disabled": False}},
            "storage": {
                "filesystem": {"rootdirectory": str(self.directory / "images")},
                "delete": {"enabled": True},
            },
            "http": {"addr": self.host},
            **({"auth": htpasswd} if self.password else {}),
        }

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.directory / "log").read_text()[-2000:]
        try:
            return self._request("GET", "/v2/") == 200
        except OSError:
            return False

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def read_log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    # --- images

    def push(self, image: OciImage, *names: str) -> None:
        """Push an image as `repository:tag`; several names share its blobs."""
        for name in names:
            repository, _, tag = name.partition(":")
            for blob in image.blobs:
                self._push_blob(repository, blob)
            self._put_manifest(repository, tag or "latest", image.manifest)

    def _push_blob(self, repository: str, blob: bytes) -> None:
        if self._request("HEAD", f"/v2/{repository}/blobs/{digest(blob)}") == 200:
            return
        request = self._build_request("POST", f"/v2/{repository}/blobs/uploads/", b"")
        with OPENER.open(request) as answer:
            location = answer.headers["Location"]
        code = self._request("PUT", f"{location}&digest={digest(blob)}", blob, "application/octet-stream")
        assert code == 201, f"{self.host} does not take a blob of {repository}: {code}"

    def _put_manifest(self, repository: str, tag: str, manifest: bytes) -> None:
        code = self._request("PUT", f"/v2/{repository}/manifests/{tag}", manifest, MANIFEST)
        assert code == 201, f"{self.host} does not take {repository}:{tag}: {code}"

    def delete(self, repository: str, image: OciImage) -> None:
        """Delete an image with all its tags."""
        code = self._request("DELETE", f"/v2/{repository}/manifests/{image.digest}")
        assert code == 202, f"{self.host} does not delete {repository}: {code}"

    def damage(self, blob: bytes) -> None:
        """Change stored data, so that its digest does not fit any more."""
        name = digest(blob).removeprefix("sha256:")
        (path,) = (self.directory / "images").glob(f"**/{name}/data")
        path.write_bytes(bytes(len(blob)))

    def _request(self, method: str, path: str, body: bytes | None = None, media_type: str = "") -> int:
        try:
            with OPENER.open(self._build_request(method, path, body, media_type)) as answer:
                status: int = answer.status
                return status
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def _build_request(
        self, method: str, path: str, body: bytes | None = None, media_type: str = ""
    ) -> urllib.request.Request:
        url = path if path.startswith("http") else f"{self.url}{path}"
        request = urllib.request.Request(url, data=body, method=method)
        if self.password:
            token = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
            request.add_header("Authorization", f"Basic {token}")
        if media_type:
            request.add_header("Content-Type", media_type)
        return request


@contextmanager
def run_registry(directory: Path, *, password: bool = False) -> Iterator[Registry]:
    registry = Registry(directory, password=password)
    try:
        registry.start()
        yield registry
    finally:
        registry.stop()
        shutil.rmtree(directory, ignore_errors=True)
