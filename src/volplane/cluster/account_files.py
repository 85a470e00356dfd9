"""The files that a pod has of its service account, for a program outside of a pod."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from volplane.client import kubeconfig
from volplane.client.https import HttpsTransport

TOKEN_SECONDS = 24 * 3600
DIRECTORY = "kubernetes.io/serviceaccount"  # below /var/run/secrets


class ServerAddress(msgspec.Struct, frozen=True):
    host: str
    port: str
    ca: bytes

    @property
    def variables(self) -> dict[str, str]:
        return {"KUBERNETES_SERVICE_HOST": self.host, "KUBERNETES_SERVICE_PORT": self.port}


def read_address(path: Path, user: str) -> ServerAddress:
    """The API server of a kubeconfig."""
    cluster = kubeconfig.for_user(path, user, {})["clusters"][0]["cluster"]
    address = urlsplit(cluster["server"])
    ca = b64decode(cluster["certificate-authority-data"])
    return ServerAddress(address.hostname or "", str(address.port), ca)


async def write_account_files(
    transport: HttpsTransport, secrets: Path, namespace: str, account: str, ca: bytes
) -> None:
    """Write token, CA and namespace of the account below a directory for /var/run/secrets."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": TOKEN_SECONDS},
    }
    answer = await transport.raw("POST", path, msgspec.json.encode(body))
    place = secrets / DIRECTORY
    place.mkdir(parents=True, exist_ok=True)
    (place / "token").write_text(msgspec.json.decode(answer)["status"]["token"])
    (place / "ca.crt").write_bytes(ca)
    (place / "namespace").write_text(namespace)
