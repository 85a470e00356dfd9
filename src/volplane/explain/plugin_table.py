"""Volume plugins as text: a table for each role, with capabilities and problems below each plugin."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from volplane.explain.cluster_state import format_duration
from volplane.explain.plugins import KnownPlugin, PluginsReport, RolePlugins
from volplane.explain.render import PROBLEM_MARK
from volplane.explain.state_of_world import StateSource
from volplane.explain.state_table import NOTHING, align, list_unknown, wrap

HEALTH = {True: "ok", False: "failing", None: ""}
HEAD = ("NAME", "KIND", "VERSION", "HEALTH", "AGE", "FROM")
BELOW = "      "


def render_plugins(report: PluginsReport, width: int = 100) -> Iterator[str]:
    for number, role in enumerate(report.roles):
        if number:
            yield ""
        yield _head(role)
        yield from _rows(role, report.at, width)
        if role.unknown:
            yield from wrap("  not known: ", role.unknown, width)
    yield from list_unknown(report.unknown, width)


def _head(role: RolePlugins) -> str:
    count, bad = len(role.plugins), sum(plugin.healthy is False for plugin in role.plugins)
    derived = " (derived from the API)" if role.source is StateSource.API else ""
    problems = f", {bad} not healthy" if bad else ""
    return f"{role.role}{derived}: {count} {'plugin' if count == 1 else 'plugins'}{problems}"


def _rows(role: RolePlugins, now: datetime, width: int) -> Iterator[str]:
    if not role.plugins:
        return
    lines = align([HEAD, *(_cells(plugin, now) for plugin in role.plugins)])
    yield f"  {lines[0]}"
    for plugin, line in zip(role.plugins, lines[1:], strict=True):
        yield f"  {line}"
        if plugin.capabilities:
            yield from wrap(BELOW, ", ".join(plugin.capabilities), width)
        if plugin.healthy is False:
            yield from wrap(PROBLEM_MARK, plugin.message, width)


def _cells(plugin: KnownPlugin, now: datetime) -> tuple[str, ...]:
    age = format_duration(now - plugin.since) if plugin.since else ""
    health = HEALTH[plugin.healthy]
    texts = (plugin.name, plugin.kind, plugin.version, health, age, plugin.origin)
    return tuple(text or NOTHING for text in texts)
