"""TLS contexts for servers and clients. Certificates are file names or PEM text, as in kubeconfigs."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

Pem = str | bytes | Path
NO_CHECK_TIME = ssl.VerifyFlags(0x200000)  # X509_V_FLAG_NO_CHECK_TIME, which `ssl` does not name


def server_context(cert: Pem, key: Pem, client_ca: Pem | None = None) -> ssl.SSLContext:
    """A server context. Clients may present a certificate of `client_ca`; those of other CAs are rejected."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.options |= ssl.OP_NO_RENEGOTIATION  # costs the server more than the client
    load_pair(context, cert, key)
    if client_ca is not None:
        _trust(context, client_ca)
        context.verify_mode = ssl.CERT_OPTIONAL
        # The application checks the time (`Peer.is_valid`): 401 says more than a failed handshake.
        context.verify_flags |= NO_CHECK_TIME
    return context


def client_context(
    ca: Pem | None = None, cert: Pem | None = None, key: Pem | None = None, *, verify: bool = True
) -> ssl.SSLContext:
    """A client context that trusts `ca` (or the machine's CAs) and presents a certificate, if given."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif ca is None:
        context.load_default_certs()
    else:
        _trust(context, ca)
    if cert is not None:
        load_pair(context, cert, key if key is not None else cert)
    return context


def _trust(context: ssl.SSLContext, ca: Pem) -> None:
    text = _pem(ca)
    if text is None:
        context.load_verify_locations(cafile=os.fspath(ca))
    else:
        context.load_verify_locations(cadata=text.decode())


def load_pair(context: ssl.SSLContext, cert: Pem, key: Pem) -> None:
    """Load a certificate for new connections; open connections keep the old one."""
    with ExitStack() as stack:
        context.load_cert_chain(stack.enter_context(_as_file(cert)), stack.enter_context(_as_file(key)))


@contextmanager
def _as_file(pem: Pem) -> Iterator[str]:
    """A file name for a PEM: OpenSSL reads keys from files only, and a key given as text must not reach a
    disk, where the operating system allows it.
    """
    text = _pem(pem)
    if text is None:
        yield os.fsdecode(pem)
        return
    if not hasattr(os, "memfd_create"):  # not Linux
        with tempfile.NamedTemporaryFile() as file:  # only its owner can read it
            file.write(text)
            file.flush()
            yield file.name
        return
    descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, text)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _pem(pem: Pem) -> bytes | None:
    """The PEM text, or None if it is a file name."""
    raw = pem.encode() if isinstance(pem, str) else pem
    return raw if isinstance(raw, bytes) and b"-----BEGIN" in raw else None
