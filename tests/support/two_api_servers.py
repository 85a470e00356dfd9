"""`volplane up --separate` on etcd with two API servers: the scheduler and the nodes use the second one.

VOLPLANE_TEST_ETCD_URL=http://127.0.0.1:2379 python -m tests.support.two_api_servers --data-dir DIR
"""

from __future__ import annotations

import asyncio
import os

import click

from volplane.base.tasks import run_until
from volplane.cli.options import options
from volplane.cli.serve import serve
from volplane.cluster.data_directory import free_port
from volplane.cluster.multi_process import MultiProcessCluster
from volplane.cluster.single_process import ClusterOptions

URL = "VOLPLANE_TEST_ETCD_URL"
OF_SECOND = ("system:kube-scheduler", "system:node:")


class TwoApiServers(MultiProcessCluster):
    def _apiserver(self) -> list[str]:
        return [*super()._apiserver(), f"--etcd-servers={os.environ[URL]}"]

    async def _connect(self) -> None:
        await super()._connect()
        port = free_port()
        flags = [flag for flag in self._apiserver() if not flag.startswith("--port=")]
        self._start_role("apiserver-2", [*flags, f"--port={port}"], verb="apiserver")
        self._second = f"https://127.0.0.1:{port}"

    def _write_kubeconfig(self, user: str, *groups: str) -> str:
        if not user.startswith(OF_SECOND):
            return super()._write_kubeconfig(user, *groups)
        first, self.url = self.url, self._second
        try:
            return super()._write_kubeconfig(user, *groups)
        finally:
            self.url = first

    async def _stop(self) -> None:
        await self._end_nodes()
        await self._end("apiserver-2")
        await super()._stop()


@click.command()
@options(ClusterOptions)
def command(settings: ClusterOptions) -> None:
    serve(lambda stop: _up(settings, stop))


async def _up(settings: ClusterOptions, stop: asyncio.Event) -> None:
    async with TwoApiServers(settings) as cluster:
        await run_until(stop, cluster.wait_ready())
        if not stop.is_set():
            await run_until(stop, cluster.wait())


if __name__ == "__main__":
    command()
