"""A real kube-apiserver with Debian's etcd."""

from __future__ import annotations

import json
import os
import secrets
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.support import peers
from tests.support.etcd import etcd, free_port

PATIENCE = 180.0  # seconds; it compiles a lot of rules when it starts


class KubeApiServer:
    def __init__(self, directory: Path) -> None:
        self.directory, self.port, self.token = directory, free_port(), secrets.token_hex(16)
        self.manager_token = secrets.token_hex(16)  # of the user system:kube-controller-manager
        self.authority = directory / "certificates" / "apiserver.crt"
        self.log = directory / "kube-apiserver.log"

    @property
    def address(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def start(self, store: str) -> subprocess.Popen[bytes]:
        tokens, key = self.directory / "tokens.csv", self.directory / "accounts.key"
        manager = "system:kube-controller-manager"
        tokens.write_text(
            f'{self.token},admin,admin,"system:masters"\n{self.manager_token},{manager},{manager}\n'
        )
        made = ec.generate_private_key(ec.SECP256R1())
        encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL
        key.write_bytes(made.private_bytes(encoding, form, serialization.NoEncryption()))
        command = [
            peers.path("kube-apiserver"),
            f"--etcd-servers={store}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--cert-dir={self.directory / 'certificates'}",
            f"--token-auth-file={tokens}",
            "--authorization-mode=RBAC",
            "--allow-privileged=true",
            f"--service-account-issuer={self.address}",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--v=1",
        ]
        with self.log.open("wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, cwd=self.directory)

    def wait(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            assert process.poll() is None, self.log.read_text()[-3000:]
            try:
                if self.request("/readyz") == "ok":
                    return
            except (OSError, AssertionError):
                assert time.monotonic() < deadline, self.log.read_text()[-3000:]
            time.sleep(0.2)

    def request(self, path: str, body: Any = None, method: str = "") -> Any:
        """Send a request as administrator; returns decoded JSON."""
        context = ssl.create_default_context(cafile=str(self.authority))
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.address + path, data, headers, method=method or ("POST" if data else "GET")
        )
        try:
            with urllib.request.urlopen(request, context=context, timeout=60) as answer:
                text = answer.read().decode()
                return json.loads(text) if text.startswith("{") else text
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {error.code} {error.read().decode()}") from None

    def config(self, name: str, token: str = "") -> str:
        """A kubeconfig: the administrator's, or one with a token."""
        path = self.directory / f"{name}.kubeconfig"
        cluster = {"server": self.address, "certificate-authority": str(self.authority)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": token or self.token}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        }
        path.write_text(json.dumps(config))
        path.chmod(0o600)
        return str(path)

    def account(self, name: str, namespace: str = "kube-system") -> str:
        """A kubeconfig with a token of a service account."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}}
        return self.config(name, self.request(path, asked)["status"]["token"])

    def kubectl(self, *arguments: str, stdin: str = "", fails: bool = False) -> str:
        config, cache = self.config("admin"), str(self.directory / "kube-cache")
        done = subprocess.run(
            [peers.path("kubectl"), "--kubeconfig", config, "--cache-dir", cache, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env={**os.environ, "HOME": str(self.directory)},
        )
        assert (done.returncode != 0) is fails, f"kubectl {' '.join(arguments)}\n{done.stdout}{done.stderr}"
        return done.stdout if not fails else done.stdout + done.stderr


@contextmanager
def kube_apiserver(directory: Path) -> Iterator[KubeApiServer]:
    with etcd(directory) as member:
        running = KubeApiServer(directory)
        process = running.start(member.url)
        try:
            running.wait(process)
            yield running
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
