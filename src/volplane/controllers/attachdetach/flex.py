"""FlexVolumes of the attach/detach controller: which drivers attach, and who uses volumes without a claim.

Whether a volume is attached depends on the capabilities that its driver answered to `init`. While a driver is
missing, nothing new is attached, and what is attached stays so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from volplane.api.core import PersistentVolume, Pod
from volplane.api.storage import VolumeAttachment
from volplane.client.cache import Cache
from volplane.controllers.attachdetach.facts import (
    inline_drivers,
    inline_flex_volumes,
    inline_unique_names,
    is_flex,
    only_reads,
    unique_name,
    volume_driver,
)
from volplane.controllers.attachdetach.plan import AttachDetachView
from volplane.loops.controller import RetryableError
from volplane.rules.pods import has_released_volumes
from volplane.volumes.flex.attachment import attached_flex_volume, build_attachment, split_unique_name
from volplane.volumes.flex.options import find_flex_volume

if TYPE_CHECKING:  # it needs inotify; `explain` runs this controller without one
    from volplane.volumes.flex.prober import FlexProber


class FlexVolumes:
    """Volumes are named by their unique names. Without a prober, all drivers count as found."""

    def __init__(
        self,
        prober: FlexProber | None,
        pods: Cache[Pod],
        volumes: Cache[PersistentVolume],
        attachments: Cache[VolumeAttachment],
    ) -> None:
        self._prober, self._volumes = prober, volumes
        self._by_driver = volumes.index("driver", volume_driver)
        self._by_volume = attachments.index("flex volume", attached_flex_volume)
        self._users = pods.index("flex volumes", inline_unique_names)
        self._users_of_driver = pods.index("flex drivers", inline_drivers)

    def keys_of_driver(self, driver: str) -> Iterator[str]:
        for volume in self._by_driver[driver]:
            yield from unique_name(volume)
        for pod in self._users_of_driver[driver]:
            yield from (flex.unique_name for flex in inline_flex_volumes(pod) if flex.driver == driver)

    def attachments(self, volume: str) -> list[VolumeAttachment]:
        return sorted(self._by_volume[volume], key=lambda a: a.spec.node_name)

    def users(self, volume: str) -> Iterator[Pod]:
        """The pods with a node that have the volume inline and need it attached."""
        users = self._users[volume]
        if users and self.may_attach(_driver(volume)):
            for pod in users:
                if pod.spec.node_name and not has_released_volumes(pod):
                    yield pod

    # --- drivers

    def may_attach(self, driver: str) -> bool:
        """Whether the driver attaches volumes, or is missing, so that this is not known."""
        found = self._prober.drivers.get(driver) if self._prober is not None else None
        return found is None or found.capabilities.attach

    def missing_driver(self, volume: str) -> str:
        """Why the driver of a volume cannot be called; empty if it can."""
        if not is_flex(volume) or self._prober is None or (driver := _driver(volume)) in self._prober.drivers:
            return ""
        return self._prober.describe_missing(driver)

    def is_loading(self, volume: str) -> bool:
        return self._prober is not None and self._prober.is_loading(_driver(volume))

    # --- attaching

    def build_attachment(self, view: AttachDetachView, node: str) -> VolumeAttachment:
        users, volume = view.wanted[node], self._volumes.get(view.title)
        if volume is None or view.unique_name not in unique_name(volume):
            inline = (flex for pod in users for flex in inline_flex_volumes(pod))
            used = next((flex for flex in inline if flex.unique_name == view.unique_name), None)
            if used is None:
                raise RetryableError(f"PersistentVolume {view.title} was deleted before it was attached")
            return build_attachment(used, node, inline=True)
        claim = volume.spec.claim_ref.name if volume.spec.claim_ref is not None else ""
        flex = find_flex_volume(None, volume, read_only=all(only_reads(pod, claim) for pod in users))
        assert flex is not None
        return build_attachment(flex, node, inline=False)


def _driver(volume: str) -> str:
    return split_unique_name(volume)[0]
