"""The stages of a claim and its pod, from the trace of the process.

A stage is done when its span ends. Spans have the machine's monotonic clock, as the benchmark's own times.
Work off the critical path (events, status updates) is not a stage.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from volplane.base.trace import Span


class Stage(Struct, frozen=True):
    name: str
    component: str
    step: str
    subject: str = ""  # prefix of the subject, if component and step are not enough
    last: bool = False  # the last one of several


UP = (
    Stage("claim stored", "apiserver", "create", "pvc/"),
    Stage("pod stored", "apiserver", "create", "pod/"),
    Stage("node selected", "default-scheduler", "selected-node"),
    Stage("order written", "csi-provisioner", "write order"),
    Stage("CreateVolume", "csi-provisioner", "CreateVolume"),
    Stage("volume stored", "apiserver", "create", "pv/"),
    Stage("claim Bound", "persistentvolume-controller", "claim Bound", last=True),
    Stage("pod bound", "default-scheduler", "bind"),
    Stage("attachment stored", "apiserver", "create", "va/"),
    Stage("ControllerPublishVolume", "csi-attacher", "ControllerPublishVolume"),
    Stage("status.attached", "csi-attacher", "attached"),
    Stage("volumesAttached", "attachdetach-controller", "attached"),
    Stage("NodeStageVolume", "kubelet", "NodeStageVolume"),
    Stage("NodePublishVolume", "kubelet", "NodePublishVolume"),
)
DOWN = (
    Stage("deletion stored", "apiserver", "delete", "pod/"),
    Stage("containers ended", "kubelet", "StopContainer", last=True),
    Stage("NodeUnpublishVolume", "kubelet", "NodeUnpublishVolume"),
    Stage("NodeUnstageVolume", "kubelet", "NodeUnstageVolume"),
    Stage("detach asked for", "attachdetach-controller", "detach"),
    Stage("ControllerUnpublishVolume", "csi-attacher", "ControllerUnpublishVolume"),
    Stage("finalizer removed", "csi-attacher", "detached"),
)


def stage_times(stages: Sequence[Stage], spans: Sequence[Span], start: int) -> dict[str, float]:
    """When each stage was done, in milliseconds after the start, without missing stages."""
    found = {stage.name: _end(stage, spans) for stage in stages}
    return {name: (end - start) / 1e6 for name, end in found.items() if end is not None}


# Shares of the time, by component and steps; a driver's call includes its work on the host.
SHARES = {
    "driver": ("driver", ()),
    "mkfs": ("host", ("mkfs",)),
    "mount": ("host", ("mount", "bind")),
    "unmount": ("host", ("unmount",)),
}


def shares(spans: Sequence[Span], start: int, end: int) -> dict[str, float]:
    """Milliseconds in which at least one of each was in progress."""
    return {
        name: _busy_time(
            [s for s in spans if s.component == who and (not steps or s.step in steps)], start, end
        )
        for name, (who, steps) in SHARES.items()
    }


def _busy_time(spans: Sequence[Span], start: int, end: int) -> float:
    total, until = 0, start
    for span in sorted(spans, key=lambda s: s.start):
        total += max(0, min(span.end, end) - max(span.start, until))
        until = max(until, span.end)
    return total / 1e6


def columns(rows: Sequence[dict[str, float]]) -> dict[str, tuple[float, ...]]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: tuple(row[name] for row in rows if name in row) for name in names}


def _end(stage: Stage, spans: Sequence[Span]) -> int | None:
    ends = [
        s.end
        for s in spans
        if (s.component, s.step) == (stage.component, stage.step)
        and s.subject.startswith(stage.subject)
        and not s.error
    ]
    return None if not ends else ends[-1] if stage.last else ends[0]
