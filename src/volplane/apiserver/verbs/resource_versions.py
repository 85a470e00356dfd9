"""Parse resourceVersion parameters, and encode the continue tokens of paged lists."""

from __future__ import annotations

import asyncio
import base64
import binascii

import msgspec
from msgspec import Struct

from volplane.api.errors import BadRequest, Timeout
from volplane.store import Store

WAIT_TIMEOUT = 3.0  # seconds to wait for a revision that the store has not reached
HIGHEST, DIGITS = 2**64 - 1, 20
TOKEN_VERSION = "meta.k8s.io/v1"


class ContinueToken(Struct):
    """The content of a `continue` token: version, revision, and where the next page starts."""

    v: str
    rv: int
    start: str


def parse_revision(version: str) -> int:
    """Parse a resourceVersion. Raise BadRequest."""
    if not version.isascii() or not version.isdigit():
        raise BadRequest(f'Invalid value: "{version}": must be a non-negative integer')
    if len(version) > DIGITS or int(version) > HIGHEST:
        # Not a future revision: it can never be reached.
        raise BadRequest(f'Invalid value: "{version}": value out of range')
    return int(version)


async def wait_for_revision(store: Store, version: str) -> int:
    """Wait until the store has reached the revision. Raise Timeout (504)."""
    wanted = parse_revision(version)
    if wanted <= store.revision:
        return wanted
    try:
        async with asyncio.timeout(WAIT_TIMEOUT):
            await store.wait_for(wanted)
    except TimeoutError:
        raise too_large_error(wanted, store.revision) from None
    return wanted


def too_large_error(wanted: int, current: int) -> Timeout:
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    return Timeout(
        f"Timeout: Too large resource version: {wanted}, current: {current}",
        details={"causes": [cause], "retryAfterSeconds": 1},
    )


def encode_token(revision: int, start: str) -> str:
    raw = msgspec.json.encode(ContinueToken(TOKEN_VERSION, revision, start))
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def decode_token(text: str) -> ContinueToken:
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        token = msgspec.json.decode(raw, type=ContinueToken)
    except (binascii.Error, ValueError, msgspec.MsgspecError) as error:
        raise BadRequest(f"continue key is not valid: {error}") from error
    if token.v != TOKEN_VERSION or token.start.startswith("/"):
        raise BadRequest("continue key is not valid: incorrect encoded version or empty start key")
    return token
