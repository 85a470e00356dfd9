"""The cluster view: nodes by zone with their volumes and pods, volumes on no node, disks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from volplane.base.markup import Markup
from volplane.base.span_store import StoredSpan
from volplane.dashboard.fragments import ROOT, Fragments
from volplane.dashboard.live_view import View
from volplane.dashboard.observer import ClusterObserver
from volplane.dashboard.page_request import PageRequest
from volplane.dashboard.pieces import unknowns
from volplane.dashboard.views import cluster_render as render
from volplane.dashboard.views.cluster_facts import SHOWN, read_facts
from volplane.dashboard.views.cluster_filter import filter_picture
from volplane.dashboard.views.cluster_picture import ClusterPicture, DrawnNode, draw

SPANS = frozenset({"kubelet", "cloud"})  # components whose steps change what is shown
IN_A_ROW = 4  # nodes that are rendered before other tasks get to run


class ClusterView(View):
    title = "Cluster"

    def __init__(self, observer: ClusterObserver, page: PageRequest) -> None:
        super().__init__()
        self._observer, self._page = observer, page
        self._nodes: dict[str, tuple[DrawnNode, bool, Markup]] = {}  # rendered: node, density, text

    async def open(self, wake: Callable[[], None]) -> None:
        for type in SHOWN:
            await self._observer.cache(type)
        self.following.enter_context(self._observer.subscribe(SHOWN, lambda old, new: wake()))
        self.following.callback(self._observer.feed.subscribe(lambda spans: wake_for(spans, wake)))

    async def render(self) -> Fragments:
        picture = filter_picture(draw(await read_facts(self._observer)), self._page.parameter("q"))
        compact = render.is_compact(self._page, picture)
        fragments = {
            ROOT: render.render_frame(self._page, picture),
            render.SUMMARY: render.render_summary(picture),
            render.STORAGE: render.render_storage(self._page, picture.storage, compact=compact),
            render.DISKS: render.render_disks(self._page, picture),
            render.UNKNOWN: unknowns(self._observer.list_unread(), render.UNKNOWN),
        }
        fragments |= await self._render_nodes(picture, compact)
        return fragments

    async def _render_nodes(self, picture: ClusterPicture, compact: bool) -> dict[str, Markup]:
        """The cards of all nodes. One that has not changed is not rendered again."""
        before, self._nodes = self._nodes, {}
        for number, node in enumerate(picture.nodes):
            known = before.get(node.name)
            if known is None or known[:2] != (node, compact):
                known = (node, compact, render.render_node(self._page, node, compact=compact))
                if number % IN_A_ROW == 0:
                    await asyncio.sleep(0)
            self._nodes[node.name] = known
        return {render.node_id(name): rendered[2] for name, rendered in self._nodes.items()}


def wake_for(spans: Sequence[StoredSpan], wake: Callable[[], None]) -> None:
    """What kubelets have mounted, and the state of disks, is in no object: their steps tell of a change."""
    if any(stored.span.component in SPANS for stored in spans):
        wake()
