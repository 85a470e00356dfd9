"""Which view belongs to which path."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from volplane.dashboard.live_view import View
from volplane.dashboard.observer import ClusterObserver
from volplane.dashboard.page_request import PageNotFound, PageRequest
from volplane.dashboard.views.cluster import ClusterView
from volplane.dashboard.views.journey import JourneyView
from volplane.dashboard.views.journeys import JourneyListView
from volplane.dashboard.views.objects import ObjectView
from volplane.dashboard.views.states import StatesView
from volplane.dashboard.views.waiting import WaitingView

VIEWS: Mapping[str, Callable[[ClusterObserver, PageRequest], View]] = {
    "cluster": ClusterView,
    "desired-and-actual": StatesView,
    "journey": JourneyView,
    "journeys": JourneyListView,
    "object": ObjectView,
    "waiting": WaitingView,
}


def make_view(observer: ClusterObserver, page: PageRequest) -> View:
    """Raises PageNotFound."""
    make = VIEWS.get(page.path.strip("/").partition("/")[0])
    if make is None:
        raise PageNotFound(f"there is no page {page.path}")
    return make(observer, page)
