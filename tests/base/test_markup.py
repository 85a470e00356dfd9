"""HTML as text: everything is escaped, except what is markup already."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volplane.base.markup import Markup, join, tag, words


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (tag("p", "a < b & c"), "<p>a &lt; b &amp; c</p>"),
        (tag("p", tag("b", "x")), "<p><b>x</b></p>"),
        (tag("p", ["a", None, False, ("b", 3)]), "<p>ab3</p>"),
        (tag("a", "x", href='"><script>'), '<a href="&quot;&gt;&lt;script&gt;">x</a>'),
        (tag("p", class_="a", aria_label="b", data_key=1), '<p class="a" aria-label="b" data-key="1"></p>'),
        (tag("input", disabled=True, hidden=False, value=None), "<input disabled/>"),
        (tag("rect", x=1.5, width=2.0), '<rect x="1.5" width="2"/>'),
        (tag("path", tag("title", "t"), d="M0 0"), '<path d="M0 0"><title>t</title></path>'),
        (join("<", tag("br"), ">"), "&lt;<br/>&gt;"),
    ],
)
def test_an_element_is_written_with_everything_escaped(made: Markup, text: str) -> None:
    assert made == text


def test_class_names_that_do_not_apply_are_left_out() -> None:
    assert words("a", None, False, "", "b") == "a b"
    assert words(None, False) is None


@given(st.text(), st.text())
def test_no_text_becomes_an_element_or_ends_an_attribute(content: str, value: str) -> None:
    made = tag("p", content, title=value)
    assert made.count("<") == 2
    assert made.count('"') == 2
