"""Two journeys step by step: the same steps stand beside each other, and the others alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

from msgspec import Struct

from volplane.explain.journey.model import JourneyStep

StepKey = tuple[str, str, str]


class StepPair(Struct, frozen=True):
    """The same step in two journeys; None where one does not have it."""

    first: JourneyStep | None
    second: JourneyStep | None

    @property
    def step(self) -> JourneyStep:
        found = self.first or self.second
        assert found is not None
        return found

    @property
    def slower(self) -> float | None:
        """Seconds that the second one took longer; None if that is not known."""
        if self.first is None or self.second is None:
            return None
        if self.first.seconds is None or self.second.seconds is None:
            return None
        return self.second.seconds - self.first.seconds


def pair_steps(first: Sequence[JourneyStep], second: Sequence[JourneyStep]) -> list[StepPair]:
    """Steps are the same if component, call and kind of object are. Their order is kept."""
    matcher = SequenceMatcher(None, [_key(s) for s in first], [_key(s) for s in second], autojunk=False)
    pairs: list[StepPair] = []
    for tag, a, a_end, b, b_end in matcher.get_opcodes():
        if tag == "equal":
            pairs += [StepPair(*both) for both in zip(first[a:a_end], second[b:b_end], strict=True)]
        else:
            pairs += _pair_out_of_order(first[a:a_end], second[b:b_end])
    return pairs


def _pair_out_of_order(first: Sequence[JourneyStep], second: Sequence[JourneyStep]) -> Iterator[StepPair]:
    """Between two matches the same steps may stand in another order: components work side by side."""
    left = list(second)
    for step in first:
        same = next((other for other in left if _key(other) == _key(step)), None)
        if same is not None:
            left.remove(same)
        yield StepPair(step, same)
    yield from (StepPair(None, step) for step in left)


def _key(step: JourneyStep) -> StepKey:
    return step.component, step.what, step.subject.partition("/")[0]
