"""The API server on HTTPS: certificates, listener, and the in-process server behind it."""

from __future__ import annotations

import ipaddress
import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from volplane import web
from volplane.api.core import Pod
from volplane.apiserver.app import BODY_LIMIT, ApiServerApp
from volplane.apiserver.audit import AuditLog
from volplane.apiserver.auth import kubeconfig
from volplane.apiserver.auth.authenticate import Authenticator, StaticTokens
from volplane.apiserver.auth.bootstrap_tokens import BootstrapTokens
from volplane.apiserver.auth.certificates import CertificateAuthority, write_private
from volplane.apiserver.auth.issuer import TokenIssuer
from volplane.apiserver.auth.service_account_tokens import ServiceAccountTokenCheck
from volplane.apiserver.auth.well_known_users import ADMIN, MASTERS
from volplane.apiserver.bootstrap import publish_api_server, publish_client_ca
from volplane.apiserver.in_process_server import InProcessServer
from volplane.apiserver.in_process_transport import InProcessTransport
from volplane.apiserver.settings import ApiServerOptions
from volplane.apiserver.start_progress import StartStep
from volplane.apiserver.strategies.pods import PodStrategy
from volplane.apiserver.strategies.pods.admission import TolerationSeconds
from volplane.apiserver.strategy import RequestUser
from volplane.apiserver.subresources.streams import NodeStreams
from volplane.base.files import set_aside
from volplane.base.loop_lag import LoopLag
from volplane.store import Store
from volplane.web import tls

TOKEN_BYTES = 32
_TOKEN = re.compile("[A-Za-z0-9_-]{43}")  # TOKEN_BYTES in base64
_NAMES = ("127.0.0.1", "::1", "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


class RunningApiServer:
    """A running API server."""

    def __init__(
        self,
        core: InProcessServer,
        app: ApiServerApp,
        listener: web.HttpServer,
        pki: Pki,
        options: ApiServerOptions,
    ) -> None:
        self.core = core
        self.backend = core.backend
        self.authority = pki.authority
        self.tokens = pki.tokens
        self.admin_token = pki.admin_token
        self.port: int = listener.port
        self.url = f"https://{_format_host(options.host)}:{listener.port}"
        self._address = _published_address(options)
        self.ca: bytes = pki.authority.pair.cert
        self.kubeconfig = Path(options.data_dir) / "kubeconfig"
        self._app = app
        self._lag = LoopLag()
        self._listener = listener

    def in_process_transport(self, user: RequestUser = ADMIN) -> InProcessTransport:
        """Return an in-process transport for one user."""
        return self.core.in_process_transport(user)

    def write_kubeconfig(self, path: Path, user: str, groups: Sequence[str] = ()) -> Path:
        """Write a kubeconfig with a client certificate for this user."""
        pair = self.authority.client(f"client-{user.replace(':', '_')}", user, groups)
        kubeconfig.write(path, server=self.url, ca=self.ca, user=user, pair=pair)
        return path

    async def start(self) -> None:
        await self.core.start()
        progress = self.core.progress
        await publish_client_ca(self.backend, self.ca.decode())
        progress.finish(StartStep.CLIENT_CA)
        await publish_api_server(self.backend, self._address, self.port)
        progress.finish(StartStep.SERVICE)
        self.write_kubeconfig(self.kubeconfig, ADMIN.name, ADMIN.groups)
        self._app.started.set()

    async def close(self, grace: float = 5.0) -> None:
        self._app.health.closing = True
        self._lag.close()
        await self.core.close()
        await self._listener.close(grace)
        await self._app.streams.close()
        if self._app.audit is not None:
            await self._app.audit.close()


class Pki:
    """Certificates, keys and tokens of a data directory, created on first use."""

    def __init__(self, options: ApiServerOptions) -> None:
        directory = Path(options.data_dir) / "pki"
        self.authority = CertificateAuthority(directory)
        hosts = dict.fromkeys((options.host, *_NAMES, *options.hosts))
        self.serving = self.authority.server("apiserver", tuple(hosts))
        self.kubelet_client = self.authority.client(
            "apiserver-kubelet-client", "kube-apiserver-kubelet-client", (MASTERS,)
        )
        self.admin_token = _load_or_create_token(directory / "admin.token")
        self.issuer = TokenIssuer.load(directory / "sa.key")
        self.tokens = StaticTokens()
        self.tokens.add(self.admin_token, ADMIN)
        self.ca_path = str(self.authority.pair.cert_path)


async def run(options: ApiServerOptions, store: Store) -> RunningApiServer:
    """Start serving. The caller closes the server and owns the store."""
    pki = Pki(options)
    core = InProcessServer(store, pki.issuer)
    _set_default_tolerations(core, options)
    client = pki.kubelet_client
    to_nodes = tls.client_context(pki.ca_path, str(client.cert_path), str(client.key_path))
    to_nodes.check_hostname = False  # nodes are addressed by IP, which their certificates need not contain
    app = ApiServerApp(
        core.backend,
        Authenticator([pki.tokens, ServiceAccountTokenCheck(core.backend), BootstrapTokens(core.backend)]),
        core.authorizer,
        NodeStreams(to_nodes),
        AuditLog(options.audit_log_path) if options.audit_log_path else None,
        progress=core.progress,
        reads=options.max_requests_inflight,
        writes=options.max_mutating_requests_inflight,
    )
    context = tls.server_context(str(pki.serving.cert_path), str(pki.serving.key_path), pki.ca_path)
    limits = web.ServerLimits(connections=options.max_connections, body=BODY_LIMIT)
    listener = await web.serve(app, host=options.host, port=options.port, ssl=context, limits=limits)
    server = RunningApiServer(core, app, listener, pki, options)
    try:
        await server.start()
    except BaseException:
        await server.close(0)
        raise
    return server


def _set_default_tolerations(core: InProcessServer, options: ApiServerOptions) -> None:
    pods = core.backend.registry.of(Pod).strategy
    assert isinstance(pods, PodStrategy)
    pods.toleration_seconds = TolerationSeconds(
        options.default_not_ready_toleration_seconds, options.default_unreachable_toleration_seconds
    )


def _load_or_create_token(path: Path) -> str:
    """Load the admin token, or create it. A truncated or unreadable file is set aside and replaced."""
    try:
        known = path.read_text().strip()
    except (FileNotFoundError, UnicodeDecodeError):
        known = ""
    if _TOKEN.fullmatch(known):
        return known
    if path.exists():
        set_aside(str(path), "it does not hold a token")
    result = secrets.token_urlsafe(TOKEN_BYTES)
    write_private(path, result.encode())
    return result


def _published_address(options: ApiServerOptions) -> str:
    """The address at which others find this server: the first that is not a wildcard."""
    for host in (options.host, *options.hosts):
        with suppress(ValueError):
            if not ipaddress.ip_address(host).is_unspecified:
                return host
    return "127.0.0.1"


def _format_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
