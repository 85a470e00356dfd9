"""What only the running attach/detach controller knows: timers, reported failures, deleted nodes.

The `volumesInUse` of a deleted node is gone with its status, so its last value is kept here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from volplane.api.core import Node
from volplane.base import clock
from volplane.base.backoff import Backoff
from volplane.controllers.attachdetach.plan import AttachDetachView

Timer = tuple[str, str]  # a node, and `unwanted`, `attach` or `detach`


class AttachDetachMemory:
    def __init__(self) -> None:
        self._since: dict[str, dict[Timer, float]] = {}  # volume → timer → loop time
        self._failures: dict[
            str, dict[str, tuple[int, float]]
        ] = {}  # volume → node → reports, when the next is due
        self._conflicts: dict[str, set[str]] = {}  # volume → nodes whose pods got the Multi-Attach event
        self._last_in_use: dict[str, frozenset[str]] = {}  # deleted node → its volumes

    def __contains__(self, volume: str) -> bool:
        return volume in self._since or volume in self._conflicts or volume in self._failures

    def observe_node(self, old: Node | None, new: Node | None) -> None:
        if new is not None:
            if old is None:
                self._last_in_use.pop(new.name, None)
        elif old is not None:
            self._last_in_use[old.name] = frozenset(old.status.volumes_in_use)

    def forget_nodes(self, is_attached: Callable[[str], bool]) -> None:
        """Forget the deleted nodes to which nothing is attached."""
        for node in [node for node in self._last_in_use if not is_attached(node)]:
            del self._last_in_use[node]

    def last_in_use(self, node: str) -> frozenset[str] | None:
        """The last volumesInUse of a deleted node; None if this process did not see the deletion."""
        return self._last_in_use.get(node)

    # --- timers

    def update(self, volume: str, view: AttachDetachView) -> None:
        """Start and stop timers by what the view shows, and drop reports for nodes that no longer matter."""
        before, now = self._since.get(volume, {}), clock.now()
        since = {timer: before.get(timer, now) for timer in _running(view, before)}
        if since:
            self._since[volume] = since
        elif before:
            del self._since[volume]
        if volume in self._failures:
            kept = {node: f for node, f in self._failures.pop(volume).items() if node in view.wanted}
            if kept:
                self._failures[volume] = kept
        if volume in self._conflicts:
            nodes = self._conflicts.pop(volume) & view.wanted.keys()
            if nodes:
                self._conflicts[volume] = nodes

    def finished_detaches(self, volume: str, view: AttachDetachView) -> Iterator[float]:
        """The duration of each detach that this view shows to be done. Call it before `update`."""
        existing = {attachment.node for attachment in view.attachments}
        for (node, what), since in self._since.get(volume, {}).items():
            if what == "detach" and node not in existing:
                yield clock.now() - since

    def elapsed_time(self, volume: str, node: str, what: str) -> float:
        timers = self._since.get(volume)
        since = timers.get((node, what)) if timers is not None else None
        return clock.now() - since if since is not None else 0.0

    # --- what was reported

    def reported_conflicts(self, volume: str) -> frozenset[str]:
        return frozenset(self._conflicts.get(volume, ()))

    def note_conflict(self, volume: str, node: str) -> None:
        self._conflicts.setdefault(volume, set()).add(node)

    def failure_due(self, volume: str, node: str) -> float:
        """When the next failure may be reported, on the loop's clock."""
        _, due = self._failures.get(volume, {}).get(node, (0, 0.0))
        return due

    def note_failure(self, volume: str, node: str, backoff: Backoff) -> float:
        """Note a reported failure and restart the attach timer; returns when the next one may be reported."""
        failures = self._failures.setdefault(volume, {})
        count, _ = failures.get(node, (0, 0.0))
        due = clock.now() + backoff.delay(count + 1)
        failures[node] = (count + 1, due)
        self._since.get(volume, {}).pop((node, "attach"), None)
        return due

    def forget_failures(self, volume: str, node: str) -> None:
        self._failures.get(volume, {}).pop(node, None)


def _running(view: AttachDetachView, before: dict[Timer, float]) -> set[Timer]:
    running: set[Timer] = set()
    for existing in view.attachments:
        node = existing.node
        # The timer of an unwanted volume stops only if it is attached when it is wanted again.
        if node not in view.wanted or (not existing.attached and (node, "unwanted") in before):
            running.add((node, "unwanted"))
        if existing.deleting:
            running.add((node, "detach"))
        elif not existing.attached:
            running.add((node, "attach"))
    return running
