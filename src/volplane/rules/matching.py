"""Which volume a claim gets, and why it does not get the others.

The binder calls it for claims without a node; the scheduler calls it with the labels of a node. `refusal` is
the one place that decides whether a pair matches, so that the reason a user reads is the reason that decided.

Volumes are tried by their exact set of access modes, fewest modes first, and the first set with a matching
volume wins even if a later one has a smaller volume. A volume whose claimRef already names the claim is taken
whatever its class, selector and phase, but only if it is not being deleted and its size, volume mode, access
modes and VolumeAttributesClass match.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.api.selectors import LabelMatcher, LabelRequirement
from volplane.rules import access, sizes, topology
from volplane.rules.binding import claim_class, claim_key, is_for, is_free_for, volume_class

FILESYSTEM = "Filesystem"


def mode(of: PersistentVolume | PersistentVolumeClaim) -> str:
    return of.spec.volume_mode or FILESYSTEM


def mismatch(volume: PersistentVolume, claim: PersistentVolumeClaim) -> str:
    """Why the volume that the claim names does not match, as in the event; "" if it does."""
    if volume.is_deleting:
        return f'the volume is marked for deletion "{volume.name}"'
    if sizes.capacity(volume) < sizes.requested_size(claim):
        return "requested PV is too small"
    if volume_class(volume) != (claim_class(claim) or ""):
        return "storageClassName does not match"
    if not _same_attributes(volume, claim):
        return "volumeAttributesClassName does not match"
    if mode(volume) != mode(claim):
        return "incompatible volumeMode"
    if access.missing_modes(volume, claim):
        return "incompatible accessMode"
    return ""


def _same_attributes(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    have, want = volume.spec.volume_attributes_class_name, claim.spec.volume_attributes_class_name
    return (have or "") == (want or "")


def refusal(
    volume: PersistentVolume,
    claim: PersistentVolumeClaim,
    *,
    delayed: bool = False,
    labels: Mapping[str, str] | None = None,
) -> str:
    """Why the claim does not get this volume; "" if it may. With `labels`: on a node with these labels."""
    return (
        _never_fits(volume, claim)
        or _unreachable(volume, labels)
        or ("" if is_for(volume, claim) else _not_chosen(volume, claim, delayed and labels is None))
    )


def _never_fits(volume: PersistentVolume, claim: PersistentVolumeClaim) -> str:
    """Mismatches that hold even for a volume reserved for the claim."""
    if not is_free_for(volume, claim):
        return f"claimed by {claim_key(volume)}"
    have, want = sizes.capacity(volume), sizes.requested_size(claim)
    if have < want:
        short = sizes.format_size(want - have)
        return f"too small by {short} ({sizes.format_size(have)} of {sizes.format_size(want)})"
    if mode(volume) != mode(claim):
        return f"volumeMode is {mode(volume)}, not {mode(claim)}"
    if not _same_attributes(volume, claim):
        offered, wanted = volume.spec.volume_attributes_class_name, claim.spec.volume_attributes_class_name
        return f'volumeAttributesClassName is "{offered or ""}", not "{wanted or ""}"'
    if volume.is_deleting:
        return "being deleted"
    missing = access.missing_modes(volume, claim)
    return f"does not offer {', '.join(missing)}" if missing else ""


def _unreachable(volume: PersistentVolume, labels: Mapping[str, str] | None) -> str:
    if labels is None or topology.is_reachable_from(volume, labels):
        return ""
    return "not reachable from the node"


def _not_chosen(volume: PersistentVolume, claim: PersistentVolumeClaim, waits: bool) -> str:
    unmet = _unmet(claim, volume.metadata.labels)
    if unmet is not None:
        return f"selector {unmet} is not met"
    wanted = claim_class(claim) or ""
    if volume_class(volume) != wanted:
        return f'storage class is "{volume_class(volume)}", not "{wanted}"'
    if waits:
        return "the claim waits for its first consumer"
    return "" if volume.status.phase == "Available" else f"phase is {volume.status.phase or 'Pending'}"


def _unmet(claim: PersistentVolumeClaim, labels: Mapping[str, str]) -> LabelRequirement | None:
    if claim.spec.selector is None:
        return None
    terms = LabelMatcher.of(claim.spec.selector).requirements
    return next((term for term in terms if not term.matches(labels)), None)


def best(
    claim: PersistentVolumeClaim,
    volumes: Iterable[PersistentVolume],
    *,
    delayed: bool = False,
    labels: Mapping[str, str] | None = None,
    taken: Collection[str] = (),
) -> PersistentVolume | None:
    """The volume for the claim: reserved ones first, then the smallest, then by name."""
    candidates = [v for v in volumes if v.name not in taken and not _never_fits(v, claim)]
    if not candidates:
        return None
    candidates.sort(key=_by_modes)
    reserved = [v for v in candidates if is_for(v, claim)]
    if labels is not None and any(_unreachable(v, labels) for v in reserved):
        return None  # the volume reserved for the claim is elsewhere, so no other may be used on this node
    fitting = [v for v in candidates if not refusal(v, claim, delayed=delayed, labels=labels)]
    if labels is None and fitting:  # the scheduler does not group volumes by access modes
        fitting = [v for v in fitting if _modes(v) == _modes(fitting[0])]
    return min(fitting, key=lambda v: _rank(v, claim), default=None)


def _modes(volume: PersistentVolume) -> tuple[str, ...]:
    return tuple(sorted(set(volume.spec.access_modes)))


def _by_modes(volume: PersistentVolume) -> tuple[int, tuple[str, ...]]:
    modes = _modes(volume)
    return len(modes), modes


def _rank(volume: PersistentVolume, claim: PersistentVolumeClaim) -> tuple[bool, int, str]:
    return not is_for(volume, claim), sizes.capacity(volume), volume.name


def refusals(
    claim: PersistentVolumeClaim, volumes: Iterable[PersistentVolume], *, delayed: bool = False, most: int = 5
) -> str:
    """Why each unclaimed volume does not match; the first few by name, then a count."""
    free = sorted((v for v in volumes if is_free_for(v, claim)), key=lambda v: v.name)
    lines = [f"{v.name}: {refusal(v, claim, delayed=delayed)}" for v in free[:most]]
    rest = len(free) - len(lines)
    return "; ".join([*lines, f"and {rest} more"] if rest else lines)
