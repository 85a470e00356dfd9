"""The journey view: the sequence diagram of a claim, a volume or a pod, as its steps happen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import structs

from volplane.api.core import Event, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.storage import VolumeAttachment
from volplane.dashboard.fragments import Fragments
from volplane.dashboard.live_view import Download, View
from volplane.dashboard.observer import ClusterObserver
from volplane.dashboard.page_request import PageNotFound, PageRequest
from volplane.dashboard.views import comparison_render, journey_render
from volplane.dashboard.views.journey_source import JourneySubject, parse_subject
from volplane.dashboard.views.step_choice import ShownSteps, choose_steps
from volplane.dashboard.views.step_details import find_log_lines
from volplane.explain.journey.diagram import render_svg
from volplane.explain.journey.model import Journey
from volplane.explain.journey.render_html import render_html
from volplane.explain.journey.render_mermaid import render_mermaid

OBJECTS = (PersistentVolumeClaim, PersistentVolume, VolumeAttachment, Pod)
FIRST = "/journey/"


class JourneyView(View):
    def __init__(self, observer: ClusterObserver, page: PageRequest) -> None:
        super().__init__()
        self._observer, self._page = observer, page
        self._subject = JourneySubject(
            observer, parse_subject(page.path.removeprefix(FIRST)), page.parameter("trace")
        )
        other = page.parameter("with")
        self._other = JourneySubject(observer, parse_subject(other)) if other else None
        self._rows = journey_render.RowCache()
        self.title = f"Journey of {self._subject.target.name}"

    async def open(self, wake: Callable[[], None]) -> None:
        for subject in filter(None, (self._subject, self._other)):
            self.following.callback(subject.close)
            await subject.open(wake)

        def on_change(old: Any, new: Any) -> None:
            obj = new if new is not None else old
            if self._subject.is_about(obj) or (self._other is not None and self._other.is_about(obj)):
                wake()

        subjects = [each for each in (self._subject, self._other) if each is not None]
        kinds = OBJECTS if all(each.is_recorded for each in subjects) else (*OBJECTS, Event)
        self.following.enter_context(self._observer.subscribe(kinds, on_change))

    async def render(self) -> Fragments:
        journey = await self._subject.read()
        if journey is None:
            return journey_render.render_missing(self._page, self._subject.target.text)
        shown = choose_steps(self._page, journey)
        if self._other is not None:
            other = await self._other.read()
            if other is not None:
                return comparison_render.render(self._page, journey, other)
            missing = (
                f"what to compare with: there is no {self._other.target.text}, and no step of it is known"
            )
            journey = structs.replace(journey, unknown=(*journey.unknown, missing))
        chosen = next((s for s in shown.all if s.id and s.id == self._page.parameter("step")), None)
        lines = await find_log_lines(self._observer.logs, journey, chosen) if chosen is not None else ()
        return self._rows.render(self._page, journey, shown, chosen, lines, self._subject.traces)

    async def download(self, kind: str) -> Download:
        journey = await self._subject.read()
        if journey is None:
            raise PageNotFound(f"{self._subject.target.text} has no journey")
        return _save(kind, journey, choose_steps(self._page, journey))


def _save(kind: str, journey: Journey, shown: ShownSteps) -> Download:
    name = f"journey-{journey.subject.replace('/', '-')}"
    title = f"Journey of {journey.subject}"
    match kind:
        case "svg":
            return Download(f"{name}.svg", "image/svg+xml", render_svg(shown.all, title).encode())
        case "html":
            lines = render_html([journey], [shown.all])
            return Download(f"{name}.html", "text/html; charset=utf-8", "\n".join(lines).encode())
        case "mermaid":
            lines = render_mermaid(shown.all, title)
            return Download(f"{name}.mmd", "text/plain; charset=utf-8", "\n".join(lines).encode())
    raise PageNotFound(f"a journey cannot be saved as {kind}: choose svg, html or mermaid")
