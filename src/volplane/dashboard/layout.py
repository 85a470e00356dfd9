"""The frame of every page: head, navigation, the live view, and the announcement of updates."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from volplane.base.markup import Content, Markup, join, tag
from volplane.dashboard.assets import Assets


class NavigationItem(Struct, frozen=True):
    path: str
    title: str
    parts: tuple[str, ...] = ()  # paths of pages that belong to it


NAVIGATION: Sequence[NavigationItem] = (
    NavigationItem("/cluster", "Cluster"),
    NavigationItem("/journeys", "Journeys", ("/journey",)),
    NavigationItem("/waiting", "Waiting"),
    NavigationItem("/desired-and-actual", "Desired and actual"),
)


def render_page(
    *, title: str, cluster: str, path: str, prefix: str, assets: Assets, content: Content, version: str = ""
) -> bytes:
    """A whole HTML page. `version`: of the live view in it; "" for a page that does not change."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{title} · {cluster}"),
        *(tag("link", rel="stylesheet", href=f"{prefix}{style}") for style in assets.styles),
        tag("link", rel="icon", href=f"{prefix}{assets.icon}", type="image/svg+xml"),
        tag("script", src=f"{prefix}{assets.script}", defer=True),
    )
    body = tag(
        "body",
        tag("a", "Skip to content", href="#main", class_="skip"),
        _header(cluster, path, prefix, is_live=bool(version)),
        tag("main", content, id="main", tabindex="-1"),
        tag("div", id="announcement", class_="visually-hidden", role="status", aria_live="polite"),
        data_version=version or None,
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}".encode()


def _header(cluster: str, path: str, prefix: str, *, is_live: bool) -> Markup:
    links = [
        tag(
            "li",
            tag(
                "a",
                item.title,
                href=f"{prefix}{item.path}",
                aria_current="page" if _belongs_to(path, item) else None,
            ),
        )
        for item in NAVIGATION
    ]
    connection = tag("span", "connecting", id="connection", class_="connection", data_state="connecting")
    return tag(
        "header",
        tag("a", _mark(), tag("span", "Volplane"), href=f"{prefix}/cluster", class_="brand"),
        tag("nav", tag("ul", *links), aria_label="Views"),
        tag("p", tag("span", cluster, class_="cluster-name"), is_live and connection, class_="place"),
        class_="top",
    )


def _belongs_to(path: str, item: NavigationItem) -> bool:
    return any(f"{path}/".startswith(f"{part}/") for part in (item.path, *item.parts))


def _mark() -> Markup:
    """The sign of the project: a disk in flight."""
    return tag(
        "svg",
        tag(
            "path",
            d="M3 7.5c0-2 4-3.5 9-3.5s9 1.500 9 3.500-4 3.500-9 3.500-9-1.500-9-3.500z",
            class_="mark-top",
        ),
        tag(
            "path",
            d="M3 11.500c0 2 4 3.500 9 3.500s9-1.500 9-3.500M3 16c0 2 4 3.500 9 3.500s9-1.500 9-3.500",
            class_="mark-line",
        ),
        viewBox="0 0 24 24",
        width=22,
        height=22,
        aria_hidden="true",
        class_="mark",
    )


def render_message(title: str, *text: str) -> Markup:
    """A page's content that is one message."""
    return join(tag("h1", title), *(tag("p", line) for line in text))
