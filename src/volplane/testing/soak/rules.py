"""Which answers the CSI specification allows, given what the caller knows. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from volplane.csi.outcome import Code
from volplane.testing.soak.model import Answer, CreateArguments, Known, Model
from volplane.testing.soak.steps import WRITE, Mistake, Source, Step

Codes = frozenset[Code]
OK = frozenset({Code.OK})
MISSING = frozenset({Code.NOT_FOUND})
INVALID = frozenset({Code.INVALID_ARGUMENT})
IN_USE = frozenset({Code.FAILED_PRECONDITION})
# The specification has no code for a call in the wrong order: any error of the driver, but not a lost
# connection and not a call that it does not know.
WRONG_ORDER = frozenset(Code) - {Code.OK, Code.UNAVAILABLE, Code.UNIMPLEMENTED, Code.DEADLINE_EXCEEDED}
# A driver that stages may miss the staged volume before it looks for the volume itself.
UNKNOWN_ON_NODE = MISSING | IN_USE | INVALID
UNCHECKED = (WRITE, "Probe", "NodeGetInfo", "GetCapacity")


def allowed_codes(model: Model, step: Step) -> Codes:
    """The codes that a driver may answer; ABORTED is repeated by the caller, and not among them."""
    if step.mistake:
        return _for_mistake(model, step)
    exists = model.knowledge("volume", step.volume)
    # The id of a volume that never was may not be an id of this driver at all.
    missing = MISSING if step.volume in model.ids else MISSING | INVALID
    match step.call:
        case "CreateVolume":
            return _for_create(model, step)
        case "DeleteVolume":
            held = model.in_use(step.volume) or model.dependents(step.volume)
            return OK | IN_USE if held and exists is not Known.NO else OK
        case "DeleteSnapshot":
            return OK | IN_USE if model.has_restored_volumes(step.snapshot) else OK
        case "CreateSnapshot":
            again = model.maybe("snapshot", step.snapshot)
            return _by_existence(exists, OK, OK | missing if again else missing)
        case "ControllerPublishVolume":
            return _by_existence(exists, _for_attach(model, step), missing)
        case "ControllerUnpublishVolume":
            if model.comes_too_early(step):
                return OK | WRONG_ORDER
            return OK if exists is Known.YES else OK | missing
        case "NodeStageVolume":
            return _by_existence(exists, _for_stage(model, step), UNKNOWN_ON_NODE)
        case "NodeUnstageVolume":
            if model.comes_too_early(step):
                return OK | WRONG_ORDER
            return OK if exists is Known.YES else OK | missing
        case "NodePublishVolume":
            return _by_existence(exists, _for_publish(model, step), UNKNOWN_ON_NODE)
        case "NodeUnpublishVolume":
            return OK if exists is Known.YES else OK | missing
        case "ControllerExpandVolume":
            offline = not model.limits.online and model.in_use(step.volume)
            return _by_existence(exists, OK | IN_USE if offline else OK, missing)
        case "ControllerGetVolume" | "ValidateVolumeCapabilities":
            return _by_existence(exists, OK, missing)
        case "NodeGetVolumeStats":
            return _for_stats(model, step)
        case _:
            return OK


def _by_existence(exists: Known, there: Codes, missing: Codes) -> Codes:
    if exists is Known.MAYBE:
        return there | missing
    return there if exists is Known.YES else missing


def _for_create(model: Model, step: Step) -> Codes:
    arguments = model.create_arguments(step)
    if arguments.source is Source.NONE:
        return OK
    source = model.source_known(arguments)
    if source is Known.YES:
        # A copy that is perhaps deleted, of a volume that was expanded since: no copy has its first size.
        grown = arguments.source is Source.VOLUME and model.largest[arguments.origin] > arguments.size
        maybe_gone = model.knowledge("volume", step.volume) is Known.MAYBE
        return OK | {Code.OUT_OF_RANGE} if grown and maybe_gone else OK
    # A repeated call may find the volume before it misses the source.
    again = OK if model.maybe("volume", step.volume) or source is Known.MAYBE else frozenset()
    return MISSING | again | (frozenset() if arguments.source_id else INVALID)


def _missing_source(model: Model, arguments: CreateArguments) -> Codes:
    """NOT_FOUND if the source may be gone: the driver may miss it before it compares other arguments."""
    if arguments.source is Source.NONE or model.source_known(arguments) is Known.YES:
        return frozenset()
    return MISSING


def _for_attach(model: Model, step: Step) -> Codes:
    volume, node, limit = step.volume, step.node, model.limits.volumes_per_node
    there = sum(model.maybe("attached", v, node) for v in range(len(model.kinds)) if v != volume)
    full = frozenset({Code.RESOURCE_EXHAUSTED}) if limit and there >= limit else frozenset()
    if model.is_shared(volume):
        return OK | full
    others = model.elsewhere(volume, node)
    if any(model.knowledge("attached", volume, n) is Known.YES for n in others):
        return IN_USE | full
    return OK | full | (IN_USE if others else frozenset())


def _for_stage(model: Model, step: Step) -> Codes:
    if model.limits.attach and model.knowledge("attached", step.volume, step.node) is not Known.YES:
        return OK | WRONG_ORDER
    return OK


def _for_publish(model: Model, step: Step) -> Codes:
    before = "staged" if model.limits.stage else "attached" if model.limits.attach else ""
    if before and model.knowledge(before, step.volume, step.node) is not Known.YES:
        return OK | WRONG_ORDER
    if model.limits.attach and model.knowledge("attached", step.volume, step.node) is not Known.YES:
        return OK | WRONG_ORDER
    targets = model.published_targets(step.volume, step.node)
    again = model.knowledge("published", step.volume, step.node, step.target) is Known.YES
    # Access modes of a single writer may be limited to one target: FAILED_PRECONDITION at a second one.
    second = not again and any(target != step.target for target in targets)
    return OK | IN_USE if second and not model.is_shared(step.volume) else OK


def _for_stats(model: Model, step: Step) -> Codes:
    exists = model.knowledge("volume", step.volume)
    known = model.knowledge("published", step.volume, step.node, step.target)
    if (step.volume, step.node) in model.disordered or known is Known.MAYBE or exists is Known.MAYBE:
        return OK | WRONG_ORDER
    # A path without the volume is NOT_FOUND; a driver may also find the path invalid.
    return OK if known is Known.YES and exists is Known.YES else UNKNOWN_ON_NODE


def _for_mistake(model: Model, step: Step) -> Codes:
    match step.mistake:
        case Mistake.NO_VOLUME | Mistake.NO_CAPABILITY:
            return INVALID
        case Mistake.UNKNOWN_NODE:
            # The driver may look for the volume first, or see first that it is attached elsewhere.
            used = IN_USE if model.in_use(step.volume) else frozenset()
            return MISSING | used
        case Mistake.OTHER_SIZE | Mistake.OTHER_SOURCE:
            return Codes({Code.ALREADY_EXISTS}) | _missing_source(model, model.create_arguments(step))
        case _:
            return _for_unknown_volume(model, step)


def _for_unknown_volume(model: Model, step: Step) -> Codes:
    match step.call:
        case "CreateSnapshot" if model.maybe("snapshot", step.snapshot):
            # The driver may find first that the name is used.
            return MISSING | INVALID | {Code.ALREADY_EXISTS}
        case "DeleteVolume" | "DeleteSnapshot":
            return OK
        case "ControllerUnpublishVolume" | "NodeUnpublishVolume" | "NodeUnstageVolume":
            return OK | MISSING | INVALID
        case "NodeStageVolume" | "NodePublishVolume" | "NodeGetVolumeStats" | "NodeExpandVolume":
            return UNKNOWN_ON_NODE
        case _:
            return MISSING | INVALID


def judge_code(model: Model, step: Step, answer: Answer) -> str:
    """What is wrong with the code of an answer; "" if nothing is."""
    if answer.code is None or (step.call in UNCHECKED and answer.code is Code.OK):
        return ""
    codes = allowed_codes(model, step)
    if answer.code in codes:
        return ""
    found = answer.code.name + (f" ({answer.message})" if answer.message else "")
    expected = (
        "an error of the driver" if codes >= WRONG_ORDER else " or ".join(sorted(c.name for c in codes))
    )
    return f"{step}: {found}, expected {expected}"


def judge_content(model: Model, step: Step, answer: Answer) -> str:
    """What is wrong with the content of an OK; "" if nothing is."""
    if answer.code is not Code.OK or step.mistake:
        return ""
    volume = step.volume
    match step.call:
        case "CreateVolume":
            return _judge_volume(model, step, answer)
        case "CreateSnapshot":
            return _judge_snapshot(model, step, answer)
        case "ControllerPublishVolume":
            earlier = model.contexts.get((volume, step.node))
            again = model.knowledge("attached", volume, step.node) is Known.YES
            if again and earlier is not None and dict(earlier) != dict(answer.context):
                return f"{step}: publish_context {dict(answer.context)}, before it was {dict(earlier)}"
        case "ControllerExpandVolume":
            wanted = step.size * model.limits.unit
            if answer.capacity < wanted:
                return f"{step}: {answer.capacity} bytes, required are {wanted}"
        case "ControllerGetVolume" if answer.capacity:
            return _judge_capacity(model, volume, answer.capacity, "ControllerGetVolume")
        case "ListVolumes" if answer.listed is not None:
            return _judge_list(model, answer)
        case "ListSnapshots" if answer.listed is not None:
            for snapshot, id in model.snapshot_ids.items():
                if model.knowledge("snapshot", snapshot) is Known.YES and id not in answer.listed:
                    return f"ListSnapshots: snapshot {snapshot} ({id}) is missing"
        case _:
            pass
    return ""


def _judge_volume(model: Model, step: Step, answer: Answer) -> str:
    volume, id = step.volume, answer.id
    wanted = model.create_arguments(step).size
    if not id:
        return f"{step}: OK without a volume id"
    earlier = model.ids.get(volume)
    if model.knowledge("volume", volume) is Known.YES and earlier and id != earlier:
        return f"{step}: the name has the volume {earlier}, and the repeated call returns {id}"
    for other, known in model.ids.items():
        if other != volume and known == id and model.knowledge("volume", other) is Known.YES:
            return f"{step}: returns {id}, which is volume {other}"
    if answer.capacity and answer.capacity < wanted:
        return f"{step}: {answer.capacity} bytes, required are {wanted}"
    if model.knowledge("volume", volume) is Known.YES and answer.capacity:
        return _judge_capacity(model, volume, answer.capacity, str(step))
    return ""


def _judge_snapshot(model: Model, step: Step, answer: Answer) -> str:
    earlier = model.snapshot_ids.get(step.snapshot)
    if not answer.id:
        return f"{step}: OK without a snapshot id"
    if model.knowledge("snapshot", step.snapshot) is Known.YES and earlier and answer.id != earlier:
        return f"{step}: the name has the snapshot {earlier}, and the repeated call returns {answer.id}"
    if answer.source != model.ids.get(step.volume, answer.source):
        return f"{step}: its source is {answer.source!r}, and not {model.ids[step.volume]}"
    return ""


def _judge_capacity(model: Model, volume: int, found: int, where: str) -> str:
    known = model.capacity.get(volume, 0)
    if model.knowledge("volume", volume) is Known.YES and found < known:
        return f"{where}: volume {volume} has {found} bytes, before it had {known}"
    return ""


def _judge_list(model: Model, answer: Answer) -> str:
    listed = answer.listed or {}
    for volume, id in model.ids.items():
        if volume in model.abandoned:
            continue
        known = model.knowledge("volume", volume)
        if known is Known.YES and id not in listed:
            return f"ListVolumes: volume {volume} ({id}) is missing"
        if (
            known is Known.YES
            and listed[id]
            and (wrong := _judge_capacity(model, volume, listed[id], "ListVolumes"))
        ):
            return wrong
        alive = {model.ids.get(v) for v in range(len(model.kinds)) if model.maybe("volume", v)}
        if known is Known.NO and id in listed and id not in alive:
            return f"ListVolumes: volume {volume} ({id}) is deleted and still listed"
    return ""


def judge_moment(model: Model, moment: Sequence[tuple[Step, Answer]]) -> tuple[Step, str] | None:
    """The first wrong answer of calls that were made at the same time."""
    for number, (step, answer) in enumerate(moment):
        others = [other for i, (other, _) in enumerate(moment) if i != number]
        seen = model.with_concurrent(others) if others else model
        if wrong := judge_code(seen, step, answer) or judge_content(seen, step, answer):
            return step, wrong
    made: dict[tuple[str, int], str] = {}
    for step, answer in moment:
        if step.call in ("CreateVolume", "CreateSnapshot") and answer.code is Code.OK and not step.mistake:
            number = step.volume if step.call == "CreateVolume" else step.snapshot
            if made.setdefault((step.call, number), answer.id) != answer.id:
                return step, f"{step}: concurrent calls return {made[step.call, number]} and {answer.id}"
    return None
