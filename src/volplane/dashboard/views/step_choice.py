"""Which steps of a journey a page shows."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from volplane.dashboard.page_request import PageRequest
from volplane.dashboard.pieces import ListPart, choose_part, take
from volplane.explain.journey.model import Journey, JourneyOutcome, JourneyStep
from volplane.explain.journey.select import hide_details, select_back, select_forwards

DIRECTIONS = (("forwards", "Forwards"), ("back", "Back"), ("all", "Everything"))
LEVELS = (("", "Steps"), ("calls", "Every call"))
PAGE_SIZE = 250
ENDED = frozenset({JourneyOutcome.DELETED, JourneyOutcome.RELEASED})


class ShownSteps(Struct, frozen=True):
    direction: str
    all: Sequence[JourneyStep]
    part: ListPart

    @property
    def on_page(self) -> Sequence[JourneyStep]:
        return take(self.all, self.part)


def choose_steps(page: PageRequest, journey: Journey) -> ShownSteps:
    direction = choose_direction(page, journey)
    steps: Sequence[JourneyStep] = journey.steps
    if direction == "forwards":
        steps = select_forwards(steps)
    elif direction == "back":
        steps = select_back(steps)
    if page.parameter("level") != "calls":
        steps = hide_details(steps)
    last = (len(steps) + PAGE_SIZE - 1) // PAGE_SIZE
    return ShownSteps(direction, steps, choose_part(len(steps), page.number("page", max(last, 1)), PAGE_SIZE))


def choose_direction(page: PageRequest, journey: Journey) -> str:
    """As asked for; else the way to the pod, and for a volume that left its pods also the way back."""
    given = page.parameter("show")
    if given in dict(DIRECTIONS):
        return given
    return "all" if journey.outcome in ENDED else "forwards"
