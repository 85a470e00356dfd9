"""botocore's own client for a disk service in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from volplane.cloud import CloudInstance, CloudOptions, serve_endpoint
from volplane.host import Host
from volplane.store import Store
from volplane.store.memory import MemoryStore

ZONE = "us-east-1a"


def client(address: str, *, attempts: int = 1) -> Any:
    session = botocore.session.Session()
    session.set_credentials("AKIAVOLPLANE", "secret")
    config = Config(retries={"total_max_attempts": attempts, "mode": "standard"}, parameter_validation=False)
    return session.create_client("ec2", region_name="us-east-1", endpoint_url=address, config=config)


@asynccontextmanager
async def cloud(
    directory: Path, *, attempts: int = 1, store: Store | None = None, **more: Any
) -> AsyncIterator[Any]:
    host = Host()
    nodes = tuple(CloudInstance(f"i-0{n}", ZONE, str(directory / f"n{n}"), f"worker-{n}") for n in (1, 2))
    settings = CloudOptions(
        data_dir=str(directory),
        access_key="AKIAVOLPLANE",
        secret_key="secret",
        zones=(ZONE, "us-east-1b"),
        instances=nodes,
        **more,
    )
    try:
        async with serve_endpoint(settings, host, store or MemoryStore()) as address:
            yield await asyncio.to_thread(client, address, attempts=attempts)
    finally:
        await host.close()


async def script(directory: Path, use_ec2: Callable[[Any], None], **more: Any) -> None:
    """A script as people write them, on a thread of its own."""
    async with cloud(directory, **more) as ec2:
        await asyncio.to_thread(use_ec2, ec2)


def assert_refused(code: str, call: Callable[..., Any], **given: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call(**given)
    error = caught.value.response["Error"]
    assert error["Code"] == code, error
    return str(error["Message"])


def tag_specification(kind: str, **tags: str) -> list[dict[str, Any]]:
    return [{"ResourceType": kind, "Tags": [{"Key": k, "Value": v} for k, v in tags.items()]}]
