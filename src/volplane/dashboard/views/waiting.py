"""The waiting view: everything that waits now, worst first, in the words of `explain`."""

from __future__ import annotations

import asyncio
import builtins
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

from volplane.api.core import Event, Node, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.snapshot import VolumeSnapshot
from volplane.api.storage import VolumeAttachment
from volplane.base.markup import Content, Markup, tag, words
from volplane.dashboard.fragments import ROOT, Fragments, slot
from volplane.dashboard.live_view import View
from volplane.dashboard.observer import ClusterObserver
from volplane.dashboard.page_request import PageRequest
from volplane.dashboard.pieces import (
    SIGNS,
    Tone,
    badge,
    choose_part,
    count,
    empty,
    filter_form,
    moment,
    object_link,
    pager,
    take,
    unknowns,
)
from volplane.dashboard.views.cluster import wake_for
from volplane.dashboard.views.waits import ListedWait, WaitSeverity, list_waits, may_wait
from volplane.explain.cluster_state import ClusterState
from volplane.explain.resolve import ExplainTarget, explain
from volplane.explain.result import ExplainResult, ExplanationStep, StepState

KINDS: Sequence[type[Any]] = (
    Node,
    Pod,
    VolumeAttachment,
    PersistentVolumeClaim,
    PersistentVolume,
    VolumeSnapshot,
)
MOST_EXPLAINED = 200  # objects at a time
PAGE_SIZE = 30
COUNT, PAGES, UNKNOWN = "waiting-count", "waiting-pages", "unknown"
TITLES = {
    WaitSeverity.NODE: "node lost",
    WaitSeverity.FAILING: "failing",
    WaitSeverity.WAITING: "waiting",
    WaitSeverity.EXPECTED: "as expected",
}
STEP_TONES = {StepState.DONE: Tone.GOOD, StepState.WAITS: Tone.WARN, StepState.LATER: Tone.IDLE}
COMMAND = re.compile(r"\b(kubectl|volplane|aws) .*?(?=[,;] |$)")


class WaitingView(View):
    title = "Waiting"

    def __init__(self, observer: ClusterObserver, page: PageRequest) -> None:
        super().__init__()
        self._observer, self._page = observer, page

    async def open(self, wake: Callable[[], None]) -> None:
        followed: tuple[builtins.type[Any], ...] = (*KINDS, Event)
        for type in followed:
            await self._observer.cache(type)
        self.following.enter_context(self._observer.subscribe(followed, lambda old, new: wake()))
        self.following.callback(self._observer.feed.subscribe(lambda spans: wake_for(spans, wake)))

    async def render(self) -> Fragments:
        waits, left = await self._list_waits()
        wanted = self._page.parameter("q").strip().lower()
        shown = [wait for wait in waits if not wanted or _matches(wait.result, wanted)]
        part = choose_part(len(shown), self._page.number("page"), PAGE_SIZE)
        cards = {f"wait-{wait.result.subject}": _card(self._page, wait) for wait in take(shown, part)}
        times = [step.until for wait in waits for step in wait.result.steps if step.until is not None]
        self.next_change = (
            min((at for at in times if at > waits[0].result.at), default=None) if waits else None
        )
        unread = dict.fromkeys(line for wait in waits for line in wait.result.unknown)
        return {
            ROOT: _frame(self._page, list(cards)),
            COUNT: _render_count(waits, left),
            PAGES: tag("div", pager(self._page, part, len(shown), "waits"), id=PAGES),
            UNKNOWN: unknowns(list(unread), UNKNOWN, "Not known"),
            **cards,
        }

    async def _list_waits(self) -> tuple[list[ListedWait], int]:
        """What waits, and how many objects were not looked at because there are too many."""
        objects = [obj for type in KINDS for obj in (await self._observer.cache(type)).all() if may_wait(obj)]
        if not objects:
            return [], 0
        state = await self._observer.freeze()
        try:
            results = [result async for result in _explain_all(state, objects[:MOST_EXPLAINED])]
        finally:
            await state.caches.close()
        return list_waits(results), max(len(objects) - MOST_EXPLAINED, 0)


async def _explain_all(state: ClusterState, objects: Iterable[Any]) -> AsyncIterator[ExplainResult]:
    for obj in objects:
        yield await explain(state, ExplainTarget(type(obj), obj.name, obj.namespace), obj)
        await asyncio.sleep(0)  # let other tasks run: there may be hundreds


def _matches(result: ExplainResult, wanted: str) -> bool:
    return wanted in result.subject or wanted in result.answer.lower()


def _frame(page: PageRequest, cards: Sequence[str]) -> Markup:
    nothing = "Nothing that waits matches the filter." if page.parameter("q") else "Nothing waits."
    return tag(
        "div",
        tag(
            "div",
            tag("div", tag("h1", "Waiting"), slot(COUNT)),
            tag("div", filter_form(page, "what waits"), class_="tools"),
            class_="page-head",
        ),
        tag("ol", *map(slot, cards), class_="waits") if cards else empty(nothing),
        slot(PAGES),
        slot(UNKNOWN),
        id=ROOT,
    )


def _render_count(waits: Sequence[ListedWait], left: int) -> Markup:
    numbers = {severity: sum(wait.severity is severity for wait in waits) for severity in WaitSeverity}
    items: list[Content] = [
        tag("li", badge(severity.tone, f"{number} {TITLES[severity]}"))
        for severity, number in numbers.items()
        if number
    ]
    if left:
        items.append(tag("li", f"{count(left, 'more object')} not looked at"))
    return tag(
        "ul",
        *(items or [tag("li", badge(Tone.GOOD, "nothing waits"))]),
        id=COUNT,
        class_="summary",
        data_announce="Waiting",
    )


def _card(page: PageRequest, wait: ListedWait) -> Markup:
    result, first = wait.result, wait.first
    return tag(
        "li",
        tag(
            "div",
            SIGNS[wait.severity.tone],
            tag("h2", object_link(page, result.subject)),
            badge(wait.severity.tone, TITLES[wait.severity]),
            tag("span", _times(first), class_="dim when"),
            class_="wait-head",
        ),
        tag("p", result.answer, class_="answer"),
        render_advice(result.advice),
        tag("details", tag("summary", f"All steps ({len(result.steps)})"), render_steps(result.steps)),
        id=f"wait-{result.subject}",
        class_=words("wait", f"tone-{wait.severity.tone}"),
    )


def _times(step: ExplanationStep) -> list[Content]:
    parts: list[Content] = [moment(step.since)]
    if step.until is not None:
        parts += [f"; {step.ends or 'checked again'} ", moment(step.until)]
    return parts


def render_steps(steps: Sequence[ExplanationStep]) -> Markup:
    items = [
        tag(
            "li",
            SIGNS[STEP_TONES[step.state]],
            tag("span", step.what, class_="what"),
            step.who and tag("span", step.who, class_="who"),
            step.why and tag("span", step.why, class_="why"),
            [tag("span", line, class_="why") for line in step.details],
            class_=f"tone-{STEP_TONES[step.state]} step-{step.state}",
        )
        for step in steps
    ]
    return tag("ol", *items, class_="explained")


def render_advice(lines: Sequence[str]) -> Markup | None:
    if not lines:
        return None
    return tag(
        "ul", *(tag("li", *_with_command(line)) for line in lines), class_="advice", aria_label="What to do"
    )


def _with_command(line: str) -> Iterable[Content]:
    """Advice; a command in it can be copied."""
    found = COMMAND.search(line)
    if found is None:
        yield line
        return
    yield line[: found.start()]
    yield tag("code", found[0])
    yield line[found.end() :]
    yield tag("button", "Copy", type="button", data_copy=found[0], aria_label=f"Copy: {found[0]}")
