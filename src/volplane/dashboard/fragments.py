"""A view is made of fragments: elements with an id that are rendered, compared and sent one by one.

A fragment has a slot for each fragment inside it, so that a change of one volume sends one node's card, not
the page. `dashboard/static/page.js` puts fragments into their slots in the browser; `assemble` does it here,
for the first request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from volplane.base.markup import Markup, tag

ROOT = "view"  # id of the fragment that has all others in it
SLOT = "live-slot"  # the element that stands for another fragment
_SLOT = re.compile(f'<{SLOT} ref="([^"]*)"></{SLOT}>')

Fragments = Mapping[str, Markup]  # by id: one element with that id


def slot(id: str) -> Markup:
    """The place of another fragment."""
    return tag(SLOT, ref=id)


def assemble(fragments: Fragments, id: str = ROOT) -> Markup:
    """A fragment with all that are in it."""
    return Markup(_SLOT.sub(lambda found: assemble(fragments, found[1]), fragments[id]))
