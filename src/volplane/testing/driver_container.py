"""The driver's containers for cases without a cluster: its own image, started by a container runtime.

A container shares the network of the machine, and sees the directory of the run at the same path. Its mounts
there are seen by the machine, and stay when it is killed, as with a process.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from functools import partial
from pathlib import Path

from msgspec import Struct

from volplane.cluster.errors import CannotStart
from volplane.cluster.external_driver.command import fill_variables
from volplane.cluster.external_driver.model import Command, ImageCommand
from volplane.csi.call_interceptor import CallInterceptor
from volplane.host import Host
from volplane.node.containers.cri import labels, v1
from volplane.node.containers.cri.client import CriClient, CriError, NotFoundInRuntime, insist
from volplane.node.containers.cri.first_process import FirstProcess
from volplane.node.containers.cri.image_names import with_default_tag
from volplane.node.containers.cri.removal import remove_node
from volplane.node.containers.cri.runtime import read_pid
from volplane.testing.driver_process import LOG_TAIL, DriverProcess, DriverStartError, RunningDriver

PULL_TIMEOUT = 600.0
NAMESPACE = "volplane-test-driver"


class DriverContainerProcess(Struct):
    """A container as a process: what the environment asks of it."""

    id: str
    pid: int
    process: FirstProcess
    cri: CriClient
    code: int | None = None

    @property
    def running(self) -> bool:
        return self.code is None and not self.process.has_ended

    async def wait(self) -> int:
        await self.process.wait()
        if self.code is None:
            self.code = await insist(self._read_code)
        return self.code

    async def _read_code(self) -> int:
        while True:
            status = (await self.cri.container_status(self.id)).status
            if status.state == v1.CONTAINER_EXITED:
                return status.exit_code
            await asyncio.sleep(0.01)  # until the runtime has recorded the exit that was seen


class DriverContainers:
    """The runtime of a run: `directory` is what all containers see, and by which they are found."""

    def __init__(self, endpoint: str, directory: Path) -> None:
        self.cri, self.endpoint, self.directory = CriClient(endpoint), endpoint, directory
        self._pulled: set[str] = set()

    @property
    def labels(self) -> dict[str, str]:
        return labels.node_labels(str(self.directory))

    async def ensure_image(self, image: str) -> str:
        """Pull it, if the runtime does not have it. Raises CriError."""
        name = with_default_tag(image)
        spec = v1.ImageSpec(image=name)
        found = await self.cri.call("ImageStatus", v1.ImageStatusRequest(image=spec))
        if not found.image.id:
            await self.cri.call("PullImage", v1.PullImageRequest(image=spec), PULL_TIMEOUT)
            found = await self.cri.call("ImageStatus", v1.ImageStatusRequest(image=spec))
        return str(found.image.id)

    async def check(self) -> None:
        """Raises CannotStart if no runtime answers."""
        try:
            await self.cri.version()
        except CriError as error:
            raise CannotStart(f"container runtime at {self.endpoint}: {error}") from error

    async def close(self) -> None:
        await self.cri.close()
        await remove_node(self.endpoint, str(self.directory))


class DriverContainer(DriverProcess):
    """One container of the driver; each start is a new one in the same sandbox."""

    def __init__(
        self,
        name: str,
        command: Command,
        directory: Path,
        host: Host,
        *,
        mode: str,
        interceptor: CallInterceptor,
        containers: DriverContainers,
    ) -> None:
        super().__init__(name, command, directory, host, mode=mode, interceptor=interceptor)
        assert command.container is not None
        self._image: ImageCommand = command.container
        self._containers, self._sandbox = containers, ""
        self._config = self._make_sandbox_config(directory)

    def _make_sandbox_config(self, directory: Path) -> v1.PodSandboxConfig:
        uid = hashlib.sha256(str(self.root).encode()).hexdigest()[:32]
        namespaces = v1.NamespaceOption(network=v1.NODE, pid=v1.CONTAINER, ipc=v1.NODE)
        return v1.PodSandboxConfig(
            metadata=v1.PodSandboxMetadata(name=self.name, uid=uid, namespace=NAMESPACE),
            log_directory=str(directory),
            labels={labels.POD_NAME: self.name, labels.POD_UID: uid, **self._containers.labels},
            linux=v1.LinuxPodSandboxConfig(
                security_context=v1.LinuxSandboxSecurityContext(
                    namespace_options=namespaces, privileged=self._image.privileged
                )
            ),
        )

    async def _spawn(self, argv: list[str], env: dict[str, str]) -> RunningDriver:
        cri = self._containers.cri
        try:
            image = await self._containers.ensure_image(self._image.image)
            if not self._sandbox:
                self._sandbox = await cri.run_sandbox(self._config, "")
            config = self._make_container_config(image, argv, env)
            id = await cri.create_container(self._sandbox, config, self._config)
            await cri.start_container(id)
            pid = read_pid((await cri.container_status(id)).info)
        except CriError as error:
            raise DriverStartError(f"{self.name}: {error}") from error
        process = FirstProcess.open(pid)
        if process is None:
            raise DriverStartError(f"{self.name}: the driver ended at once: {self.log_tail() or 'no output'}")
        return DriverContainerProcess(id, pid, process, cri)

    def _make_container_config(self, image: str, argv: list[str], env: dict[str, str]) -> v1.ContainerConfig:
        for name in self._image.directories.values():
            (self._state / name).mkdir(parents=True, exist_ok=True)
        directory = str(self.root.parent)
        places = {path: str(self._state / name) for path, name in self._image.directories.items()}
        places |= self._image.host_paths
        places |= self.binds
        mounts = [v1.Mount(container_path=path, host_path=source) for path, source in places.items()]
        own = v1.Mount(
            container_path=directory, host_path=directory, propagation=v1.PROPAGATION_BIDIRECTIONAL
        )
        return v1.ContainerConfig(
            metadata=v1.ContainerMetadata(name="driver", attempt=self.starts),
            image=v1.ImageSpec(image=image, user_specified_image=self._image.image),
            command=[fill_variables(word, self._values) for word in self._image.entrypoint],
            args=argv,
            envs=[v1.KeyValue(key=name, value=value) for name, value in env.items()],
            mounts=[own, *mounts],
            labels={labels.POD_NAME: self.name, labels.CONTAINER_NAME: "driver", **self._containers.labels},
            log_path=os.path.basename(self.log),
            linux=v1.LinuxContainerConfig(
                security_context=v1.LinuxContainerSecurityContext(
                    privileged=self._image.privileged,
                    namespace_options=self._config.linux.security_context.namespace_options,
                )
            ),
        )

    async def kill(self) -> None:
        if isinstance(self._process, DriverContainerProcess):
            await self._end(0)
            self._process.process.close()
            self._process = None

    async def _terminate(self, process: RunningDriver, grace: float) -> None:
        await self._end(grace)

    async def _end(self, grace: float) -> None:
        assert isinstance(self._process, DriverContainerProcess)
        cri, id = self._containers.cri, self._process.id
        try:
            await insist(partial(cri.stop_container, id, grace))
            self._process.code = await insist(self._process.wait)
            await insist(partial(cri.remove_container, id))
        except NotFoundInRuntime:
            self._process.code = self._process.code or 0

    def _members(self, leader: int) -> list[int]:
        """All processes in the container's pid namespace."""
        try:
            own = os.readlink(f"/proc/{leader}/ns/pid")
        except OSError:
            return []
        found = []
        for entry in os.listdir("/proc"):
            try:
                if entry.isdigit() and os.readlink(f"/proc/{entry}/ns/pid") == own:
                    found.append(int(entry))
            except OSError:
                continue
        return found

    def log_tail(self, most: int = LOG_TAIL, since: int = 0) -> str:
        """The end of its log, without what the runtime adds to each line."""
        lines = super().log_tail(most, since).splitlines()
        return "\n".join(line.split(" ", 3)[-1] for line in lines)
