"""Credential plugins: programs of `users[].user.exec` that print a token or a client certificate.

The protocol is `client.authentication.k8s.io`: the plugin gets an ExecCredential in $KUBERNETES_EXEC_INFO and
prints one on standard output. Its standard error is the user's. Credentials are used until they expire or the
server rejects them. This is the only place besides `host` that starts a program: `explain` runs on any
operating system, `host` only on Linux.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import yaml
from msgspec import UNSET, Meta, Struct, UnsetType, field

from volplane.api.errors import Unauthorized
from volplane.client.credentials import Credentials
from volplane.client.kubeconfig.files import KubeconfigEntry, parse_yaml

GROUP = "client.authentication.k8s.io"
VERSIONS = (f"{GROUP}/v1", f"{GROUP}/v1beta1")
INFO = "KUBERNETES_EXEC_INFO"
EXTENSION = "client.authentication.k8s.io/exec"  # of a cluster: handed to the plugin as spec.cluster.config
NEVER, IF_AVAILABLE, ALWAYS = "Never", "IfAvailable", "Always"
_ANSI = re.compile(r"\x1b\[[0-9;]*[a-zA-Z]")


class ExecVariable(Struct, frozen=True):
    name: str = ""
    value: str = ""


class ExecConfig(Struct, frozen=True, rename="camel"):
    """`users[].user.exec` of a kubeconfig."""

    command: str = ""
    args: Sequence[str] | None = ()
    env: Sequence[ExecVariable] | None = ()
    api_version: str = ""
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = ""


class ClusterInfo(Struct, frozen=True, omit_defaults=True, rename="kebab"):
    """What a plugin learns about the cluster, if it asks for it."""

    server: str
    tls_server_name: str = ""
    insecure_skip_tls_verify: bool = False
    certificate_authority_data: bytes = b""
    proxy_url: str = ""
    config: Any = None


class _Status(Struct, rename="camel"):
    expiration_timestamp: Annotated[datetime, Meta(tz=True)] | None = None
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""


class _ExecCredential(Struct, rename="camel"):
    kind: str = ""
    api_version: str = ""
    status: _Status | UnsetType | None = field(default=UNSET)


def read_exec_config(user: KubeconfigEntry) -> ExecConfig:
    """Read and check `exec` of a user. Raises BadKubeconfig."""
    what = f"user {user.name!r}: exec"
    try:
        found = msgspec.convert(user.fields["exec"], ExecConfig)
    except msgspec.ValidationError as error:
        raise user.error(f"{what}: {error}") from error
    if not found.command:
        raise user.error(f"{what}.command is missing")
    if found.api_version not in VERSIONS:
        raise user.error(f"{what}.apiVersion is {found.api_version!r}; known are {' and '.join(VERSIONS)}")
    if any(not variable.name for variable in found.env or ()):
        raise user.error(f"{what}.env has a variable without a name")
    mode = found.interactive_mode or (IF_AVAILABLE if found.api_version != VERSIONS[0] else "")
    if mode not in (NEVER, IF_AVAILABLE, ALWAYS):
        known = f"{NEVER}, {IF_AVAILABLE} or {ALWAYS}"
        raise user.error(f"{what}.interactiveMode must be {known}, not {mode!r}")
    command = str(user.path(found.command)) if os.sep in found.command else found.command
    return msgspec.structs.replace(found, interactive_mode=mode, command=command)


class CredentialPlugin:
    """Runs the plugin when credentials are needed. Concurrent requests wait for one run."""

    def __init__(self, user: KubeconfigEntry, config: ExecConfig, cluster: ClusterInfo) -> None:
        self._user, self._config, self._cluster = user, config, cluster
        self._credentials: Credentials | None = None
        self._expires: datetime | None = None
        self._lock = asyncio.Lock()

    async def get_credentials(self) -> Credentials:
        async with self._lock:
            if self._credentials is None or (self._expires is not None and _now() > self._expires):
                self._credentials = await self._run()
            return self._credentials

    def reject(self, used: Credentials) -> None:
        if self._credentials is used:  # else they have been renewed meanwhile
            self._credentials = None

    async def _run(self) -> Credentials:
        interactive = self._is_interactive()
        try:
            process = await asyncio.create_subprocess_exec(
                self._find_command(),
                *(self._config.args or ()),
                env=self._environment(interactive),
                stdin=None if interactive else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise self._error(f"{self._config.command}: {error.strerror}") from error
        try:
            output, _ = await process.communicate()
        except BaseException:
            if process.returncode is None:
                process.kill()
                await process.wait()
            raise
        if process.returncode != 0:
            raise self._error(f"{self._config.command} failed with exit code {process.returncode}")
        return self._read(output)

    def _is_interactive(self) -> bool:
        mode = self._config.interactive_mode
        terminal = sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()
        if mode == ALWAYS and not terminal:
            raise self._error(
                f"{self._config.command} asks for input (interactiveMode: Always), but standard input is no"
                " terminal"
            )
        return mode != NEVER and terminal

    def _find_command(self) -> str:
        found = shutil.which(self._config.command)
        if found is None:
            hint = _ANSI.sub("", self._config.install_hint).strip()
            raise self._error(f"{self._config.command} is not installed" + (f"\n\n{hint}" if hint else ""))
        return found

    def _environment(self, interactive: bool) -> Mapping[str, str]:
        spec: dict[str, Any] = {"interactive": interactive}
        if self._config.provide_cluster_info:
            spec["cluster"] = self._cluster
        info = {"kind": "ExecCredential", "apiVersion": self._config.api_version, "spec": spec}
        own = {variable.name: variable.value for variable in self._config.env or ()}
        return {**os.environ, **own, INFO: msgspec.json.encode(info).decode()}

    def _read(self, output: bytes) -> Credentials:
        try:
            text = output if output.lstrip().startswith(b"{") else msgspec.json.encode(parse_yaml(output))
            answer = msgspec.json.decode(text, type=_ExecCredential)
        except (msgspec.DecodeError, yaml.YAMLError, TypeError, ValueError) as error:
            raise self._error(
                f"the output of {self._config.command} is no ExecCredential: {error}"
            ) from error
        # As in client-go, which reads YAML, too, and knows the kind that it expects.
        if answer.kind not in ("", "ExecCredential") or answer.api_version != self._config.api_version:
            raise self._error(
                f"{self._config.command} answers with {answer.kind or 'no kind'} of"
                f" {answer.api_version or 'no apiVersion'}, not of {self._config.api_version}"
            )
        status = answer.status
        if not isinstance(status, _Status):
            raise self._error(f"{self._config.command} answers without a status")
        if bool(status.client_certificate_data) != bool(status.client_key_data):
            raise self._error(f"{self._config.command} answers with a certificate or a key, not with both")
        if not status.token and not status.client_key_data:
            raise self._error(f"{self._config.command} answers with neither a token nor a certificate")
        if not status.token.isascii() or not status.token.isprintable():
            raise self._error(f"{self._config.command} answers with a token that has a line break or such")
        self._expires = status.expiration_timestamp
        pair = f"{status.client_certificate_data}\n{status.client_key_data}" if status.client_key_data else ""
        return Credentials(status.token, pair.encode())

    def _error(self, message: str) -> Unauthorized:
        return Unauthorized(
            f"{self._user.file}: cannot get credentials of user {self._user.name!r}: {message}"
        )


def _now() -> datetime:
    return datetime.now(UTC)
