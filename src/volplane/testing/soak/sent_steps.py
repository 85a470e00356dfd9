"""Which steps of a life are sent, given what the caller knows. Pure."""

from __future__ import annotations

from volplane.testing.soak.model import Known, Model
from volplane.testing.soak.steps import WRITE, Source, Step


def is_sent(model: Model, step: Step) -> bool:
    """Whether the step makes sense now; otherwise it is left out.

    Left out are calls that no caller may make because they destroy data with every driver (a disk mounted on
    two nodes), and those whose id the caller does not know.
    """
    volume, node = step.volume, step.node
    if step.call == "DeleteSnapshot":
        pending = any(
            a.source is Source.SNAPSHOT
            and a.snapshot == step.snapshot
            and model.knowledge("volume", v) is Known.MAYBE
            for v, a in model.arguments.items()
        )
        return not pending and _has_id(
            model.knowledge("snapshot", step.snapshot), step.snapshot in model.snapshot_ids
        )
    if volume in model.abandoned or (step.source is Source.VOLUME and step.origin in model.abandoned):
        return False
    if step.call != "CreateVolume" and not _has_id(model.knowledge("volume", volume), model.has_id(volume)):
        return False
    in_order = (volume, node) not in model.disordered
    match step.call:
        case "CreateVolume":
            return _may_create(model, step)
        case "DeleteVolume" | "ControllerExpandVolume":
            # A call without an answer, which may still make a copy of the volume, must be repeated first.
            return step.mistake != "" or not model.may_be_copied(volume)
        case "CreateSnapshot":
            return _may_snapshot(model, step)
        case "NodeStageVolume" | "NodePublishVolume":
            return step.mistake != "" or (
                in_order and (model.is_shared(volume) or not model.elsewhere(volume, node))
            )
        case "ControllerPublishVolume":
            return step.mistake != "" or in_order
        case "NodeExpandVolume":
            return (
                in_order
                and _is_published(model, step)
                and model.capacity.get(volume, 0) >= step.size * model.limits.unit
            )
        case _ if step.call == WRITE:
            return in_order and _is_published(model, step)
        case _:
            return True


def _is_published(model: Model, step: Step) -> bool:
    exists = model.knowledge("volume", step.volume) is Known.YES
    return exists and model.knowledge("published", step.volume, step.node, step.target) is Known.YES


def _has_id(known: Known, has: bool) -> bool:
    """A volume that does not exist is called by its last id, or by one that never was."""
    return known is Known.NO or has


def _has_snapshot_id(model: Model, snapshot: int) -> bool:
    return _has_id(model.knowledge("snapshot", snapshot), snapshot in model.snapshot_ids)


def _may_create(model: Model, step: Step) -> bool:
    exists = model.knowledge("volume", step.volume)
    if step.mistake == "other size":
        return exists is Known.YES
    if step.mistake:
        return True
    if exists is not Known.NO:
        return True
    if step.source is Source.SNAPSHOT:
        from_ = model.snapshot_volume.get(step.snapshot, step.volume)
        return model.kinds[from_] is model.kinds[step.volume] and _has_snapshot_id(model, step.snapshot)
    if step.source is Source.VOLUME:
        known = model.knowledge("volume", step.origin)
        same = model.kinds[step.origin] is model.kinds[step.volume]
        return same and step.origin != step.volume and _has_id(known, model.has_id(step.origin))
    return True


def _may_snapshot(model: Model, step: Step) -> bool:
    known = model.knowledge("snapshot", step.snapshot)
    if step.mistake == "other source":
        mine = model.snapshot_volume.get(step.snapshot, step.volume)
        both = all(model.knowledge("volume", v) is Known.YES for v in (mine, step.volume))
        return known is Known.YES and mine != step.volume and both
    if step.mistake or known is Known.NO:
        return True
    # The same call again, of the same volume and not of a later one with its name.
    return (
        model.snapshot_volume[step.snapshot] == step.volume
        and model.ids.get(step.volume) == model.snapshot_source[step.snapshot]
    )
