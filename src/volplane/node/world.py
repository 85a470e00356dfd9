"""What is known of the volumes on this node: who wants them, what is mounted, who waits for what."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable
from contextlib import suppress

from msgspec import Struct, field, structs

from volplane.api.core import PersistentVolume
from volplane.base import clock
from volplane.node.growth import ExpansionTarget, find_expansion_target, noted_size
from volplane.node.plan import MountState, NodeVolumeView
from volplane.rules import access
from volplane.rules.waits import Wait
from volplane.volumes.base import PodVolumeRef, PodVolumeSpec, VolumePlugin


class PodMount(Struct):
    """One pod's mount that exists, or may."""

    place: PodVolumeRef
    state: MountState = MountState.ABSENT
    reconstructed: bool = False  # found on the disk; an earlier life has mounted it


class VolumeEntry:
    """One volume on this node, from the first wish until nothing of it is left."""

    def __init__(self, unique: str, plugin: VolumePlugin) -> None:
        self.unique, self.plugin = unique, plugin
        self.name = ""  # of the persistent volume, where that is known
        self.attachable = False
        self.staged = False
        self.wanted: dict[str, PodVolumeSpec] = {}
        self.pods: dict[str, PodMount] = {}
        self.stale: set[str] = set()
        self.device = MountState.ABSENT
        self.device_reconstructed = False
        self.label = ""  # of SELinux, with which it was mounted last
        self.size = 0  # in bytes, as far as this node knows
        self.growth: ExpansionTarget | None = None  # what is to be expanded here
        self.unexpandable = False  # its driver cannot do it while pods use it
        self.verified = False  # a live read has confirmed the attachment in this life
        self.wait: Wait | None = None  # None when it is at rest or at work
        self.since = 0.0
        self.next_try = 0.0
        self.task: asyncio.Task[None] | None = None
        self.again = False  # something changed while the task was at work
        self.timer: asyncio.TimerHandle | None = None

    def view(
        self, *, reported: bool, attached: bool, settled: bool, alive: Container[str], managed: bool = True
    ) -> NodeVolumeView:
        return NodeVolumeView(
            name=self.unique,
            wanted=tuple(self.wanted),
            pods={uid: held.state for uid, held in self.pods.items()},
            kept=frozenset(uid for uid in self.pods if uid in alive),
            stale=frozenset(self.stale & self.wanted.keys()),
            device=self.device,
            staged=self.staged,
            attachable=self.attachable,
            one_pod=any(_is_for_one_pod(s.volume) for s in self.wanted.values()),
            managed=managed,
            reported=reported,
            attached=attached,
            settled=settled,
            growing=self._grows_through(),
            mislabelled=self._is_mislabelled(),
        )

    def note(self, spec: PodVolumeSpec) -> None:
        """The claim or the volume has been read: has it grown?"""
        self.growth = None if self.unexpandable else find_expansion_target(spec.claim, spec.volume, self.size)
        self.size = self.size or noted_size(spec.claim)

    @property
    def is_there(self) -> bool:
        return self.device is not MountState.ABSENT or bool(self.pods)

    @property
    def is_only_found(self) -> bool:
        """An earlier life has staged it, and nobody has it or wants it as far as we know."""
        return self.device_reconstructed and not self.pods and not self.wanted

    def _is_mislabelled(self) -> bool:
        return self.is_there and any(spec.label != self.label for spec in self.wanted.values())

    def labelled(self, spec: PodVolumeSpec) -> tuple[PodVolumeSpec, str]:
        """The wish with the SELinux label that it can have, and what speaks against it."""
        if spec.pod.uid in self.pods:  # mounted by an earlier life: a label is not changed under a container
            spec = structs.replace(spec, label=self.label)
        taken = next((s.label for s in self.wanted.values() if s.label != spec.label), None)
        if taken is None:
            return spec, ""
        return spec, f'conflicting SELinux labels of volume {spec.name}: "{taken}" and "{spec.label}"'

    def _grows_through(self) -> str:
        if self.growth is None:
            return ""
        return next((u for u, spec in self.wanted.items() if self.is_mounted(u) and not spec.readonly), "")

    def is_mounted(self, pod: str) -> bool:
        held = self.pods.get(pod)
        return held is not None and held.state is MountState.MOUNTED

    def step_back(self, pod: str) -> None:
        """The pod has had its turn in vain; others who want the volume have theirs before it comes again."""
        if pod in self.wanted:
            self.wanted[pod] = self.wanted.pop(pod)

    def waits(self, wait: Wait | None, next_try: float = 0.0) -> None:
        if (wait and wait.identity) != (self.wait and self.wait.identity):
            self.since = clock.now()
        self.wait = wait
        self.next_try = next_try

    def cancel_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


def _is_for_one_pod(volume: PersistentVolume | None) -> bool:
    return volume is not None and volume.spec.access_modes == (access.ONCE_POD,)


class PodVolumes(Struct):
    """What one pod wants of the manager."""

    specs: dict[str, PodVolumeSpec] = field(default_factory=dict)  # by the volume's name in the pod
    problems: tuple[tuple[str, str], ...] = ()
    resolved: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    blocked: set[str] = field(default_factory=set)  # volumes that other pods have in a way that excludes it
    look: asyncio.Event = field(default_factory=asyncio.Event)

    async def second_look(self, seconds: float) -> None:
        """Until it is worth while, but no longer than that."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.look.wait()
        self.look.clear()

    def is_free(self, unique: str) -> None:
        """A pod has let go of this volume."""
        if unique in self.blocked:
            self.look.set()

    def names(self) -> Iterable[str]:
        return (*self.specs, *(name for name, _ in self.problems))
