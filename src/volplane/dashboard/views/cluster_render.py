"""The picture of a cluster as fragments: one for each node, one for storage, one for disks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from volplane.base.markup import Content, Markup, tag, words
from volplane.dashboard.fragments import ROOT, slot
from volplane.dashboard.page_request import PageRequest
from volplane.dashboard.pieces import (
    SIGNS,
    Tone,
    badge,
    choice,
    choose_part,
    count,
    empty,
    filter_form,
    meter,
    moment,
    pager,
    take,
)
from volplane.dashboard.views.cluster_picture import (
    ClusterPicture,
    DrawnDisk,
    DrawnNode,
    PlacedPod,
    PlacedVolume,
    PlaceState,
    is_in_use,
)

COMPACT_FROM = 120  # volumes
STORAGE_PAGE, DISK_PAGE = 40, 60
WIDEST_ZONE = 4  # nodes beside each other
DENSITIES = (("", "Auto"), ("list", "List"), ("dots", "Dots"))
SUMMARY, STORAGE, DISKS, UNKNOWN = "summary", "storage", "disks", "unknown"


def is_compact(page: PageRequest, picture: ClusterPicture) -> bool:
    """Whether volumes are dots instead of lines."""
    density = page.parameter("density")
    total = sum(len(node.volumes) for node in picture.nodes)
    return density == "dots" or (density != "list" and total > COMPACT_FROM)


def render_frame(page: PageRequest, picture: ClusterPicture) -> Markup:
    zones = [
        tag(
            "section",
            tag("h2", zone.name, tag("span", count(len(zone.nodes), "node"), class_="count")),
            tag("div", *(slot(node_id(node.name)) for node in zone.nodes), class_="nodes"),
            class_=f"zone zone-{min(len(zone.nodes), WIDEST_ZONE)}",
            aria_label=f"Zone {zone.name}",
        )
        for zone in picture.zones
    ]
    tools = tag(
        "div",
        filter_form(page, "volumes, pods, nodes"),
        choice(page, "density", DENSITIES, page.parameter("density"), "Density"),
        class_="tools",
    )
    nothing = empty("Nothing matches the filter.") if page.parameter("q") else empty("There is no node yet.")
    return tag(
        "div",
        tag("div", tag("div", tag("h1", "Cluster"), slot(SUMMARY)), tools, class_="page-head"),
        slot(UNKNOWN),
        tag(
            "div",
            tag("div", zones or nothing, class_="zones"),
            tag("aside", slot(STORAGE), slot(DISKS), class_="beside", aria_label="Storage"),
            class_="cluster-columns",
        ),
        id=ROOT,
        class_=words("cluster-view", is_compact(page, picture) and "compact"),
    )


def node_id(name: str) -> str:
    return f"node-{name}"


# --- summary


def render_summary(picture: ClusterPicture) -> Markup:
    states = Counter(
        volume.state for volume in _all_volumes(picture) if volume.state is not PlaceState.WAITING
    )
    lost = sum(bool(node.problem) for node in picture.nodes)
    pods = sum(len(node.pods) for node in picture.nodes)
    facts: list[Content] = [
        tag("li", count(len(picture.nodes), "node")),
        lost and tag("li", badge(Tone.BAD, f"{lost} lost")),
        tag("li", count(pods, "pod")),
        tag("li", count(len({volume.uid for volume in _all_volumes(picture)}), "volume")),
        *(
            tag("li", badge(state.tone, f"{number} {state}"))
            for state, number in sorted(states.items(), key=lambda item: list(PlaceState).index(item[0]))
        ),
    ]
    return tag("ul", *(fact for fact in facts if fact), id=SUMMARY, class_="summary", data_announce="Cluster")


def _all_volumes(picture: ClusterPicture) -> Iterator[PlacedVolume]:
    for node in picture.nodes:
        yield from node.volumes
    yield from picture.storage


# --- nodes


def render_node(page: PageRequest, node: DrawnNode, *, compact: bool) -> Markup:
    name = tag("h3", tag("a", node.name, href=page.link(f"/object/node/{node.name}")))
    state = badge(Tone.BAD, node.problem) if node.problem else badge(Tone.GOOD, "Ready")
    return tag(
        "article",
        tag("header", name, state),
        _problem_band(node),
        node.is_cordoned and not node.is_fenced and tag("p", "Cordoned: no new pods", class_="note"),
        [_limit(limit.driver, limit.used, limit.limit) for limit in node.limits],
        _volumes(page, node.volumes, compact=compact),
        _pods(page, node.pods),
        id=node_id(node.name),
        class_=words("node", node.problem and "lost", node.is_fenced and "fenced"),
    )


def _problem_band(node: DrawnNode) -> Content:
    if node.is_fenced:
        text = "Fenced: out of service. Its volumes are detached without waiting for it."
        return tag("p", tag("strong", "Fenced"), text.removeprefix("Fenced"), class_="band fenced")
    if not node.problem:
        return None
    what = "It may still write to its disks, so they stay attached."
    return tag(
        "p", tag("strong", "Lost"), " ", moment(node.since), ". " if node.since else "", what, class_="band"
    )


def _limit(driver: str, used: int, limit: int | None) -> Markup:
    shown = f"{used} of {limit}" if limit is not None else str(used)
    label = f"{driver}: {shown} attached"
    bar = meter(used, limit, label) if limit is not None else None
    return tag(
        "p", tag("span", driver, class_="driver"), bar, tag("span", shown, class_="figure"), class_="limit"
    )


def _volumes(page: PageRequest, volumes: Sequence[PlacedVolume], *, compact: bool) -> Markup | None:
    if not volumes:
        return tag("p", "No volumes", class_="none")
    render = _dot if compact else _line
    items = [render(page, volume) for volume in volumes]
    return tag("ul", *items, class_="dots" if compact else "volumes", aria_label="Volumes")


def _line(page: PageRequest, volume: PlacedVolume) -> Markup:
    where = (
        [tag("span", volume.namespace, class_="namespace")] if volume.namespace not in ("", "default") else []
    )
    pods = (tag("span", pod, class_="pod-name") for pod in volume.pods)
    return tag(
        "li",
        SIGNS[volume.state.tone],
        tag("a", volume.title, href=page.link(f"/object/{volume.subject}"), class_="name"),
        where,
        tag("span", volume.size, class_="size"),
        tag("span", tag("span", volume.state, class_="state"), *pods, class_="details"),
        volume.problem and tag("span", volume.problem, class_="problem"),
        class_=words("volume", f"tone-{volume.state.tone}", volume.state is PlaceState.WAITING and "ghost"),
        data_move=_move_key(volume),
    )


def _dot(page: PageRequest, volume: PlacedVolume) -> Markup:
    text = ", ".join(
        (f"{volume.namespace}/{volume.title}".lstrip("/"), volume.state, volume.size, *volume.pods)
    )
    text = f"{text}: {volume.problem}" if volume.problem else text
    return tag(
        "li",
        tag(
            "a",
            SIGNS[volume.state.tone],
            tag("span", text, class_="visually-hidden"),
            href=page.link(f"/object/{volume.subject}"),
            title=text,
        ),
        class_=f"dot tone-{volume.state.tone}",
        data_move=_move_key(volume),
    )


def _move_key(volume: PlacedVolume) -> str | None:
    """What tells the script that a volume has moved. A shared volume is at several places at once."""
    return None if volume.state is PlaceState.WAITING or volume.is_shared else volume.uid


def _pods(page: PageRequest, pods: Sequence[PlacedPod]) -> Markup | None:
    if not pods:
        return None
    items = [
        tag(
            "li",
            SIGNS[pod.tone],
            tag("a", pod.name, href=page.link(f"/object/pod/{pod.namespace}/{pod.name}"), class_="name"),
            pod.namespace != "default" and tag("span", pod.namespace, class_="namespace"),
            tag("span", pod.state, class_="state"),
            class_=f"pod tone-{pod.tone}",
        )
        for pod in pods
    ]
    with_volumes = sum(bool(pod.volumes) for pod in pods)
    text = count(len(pods), "pod") + (f", {with_volumes} with volumes" if with_volumes else "")
    return tag("details", tag("summary", text), tag("ul", *items, class_="pods"), class_="pod-list")


# --- storage and disks


def render_storage(page: PageRequest, volumes: Sequence[PlacedVolume], *, compact: bool) -> Markup:
    part = choose_part(len(volumes), page.number("storage"), STORAGE_PAGE * (10 if compact else 1))
    shown = take(volumes, part)
    return tag(
        "section",
        tag("h2", "On no node", tag("span", len(volumes), class_="count")),
        _volumes(page, shown, compact=compact) if shown else empty("Every volume is on a node."),
        pager(page, part, len(volumes), "volumes on no node", "storage"),
        id=STORAGE,
        class_="panel",
    )


def render_disks(page: PageRequest, picture: ClusterPicture) -> Markup:
    if not picture.has_disk_service:
        return tag("section", id=DISKS, hidden=True)
    every = picture.disks
    is_short = len(every) > DISK_PAGE and not page.parameter("disks") and not page.parameter("q")
    disks = [each for each in every if not is_in_use(each.disk)] if is_short else every
    part = choose_part(len(disks), page.number("disks"), DISK_PAGE)
    groups: dict[str, list[Markup]] = {}
    for disk in take(disks, part):
        groups.setdefault(disk.disk.zone, []).append(_disk(page, disk))
    rest = len(every) - len(disks)
    link = tag("a", "Show all", href=page.link(disks=1), data_show=True)
    return tag(
        "section",
        tag("h2", "Disk service", tag("span", count(len(every), "disk"), class_="count")),
        [_disk_group(zone, items) for zone, items in groups.items()],
        tag("p", f"{count(rest, 'disk')} attached to nodes. ", link, class_="empty") if rest else None,
        None if every else empty("There is no disk."),
        pager(page, part, len(disks), "disks", "disks"),
        id=DISKS,
        class_="panel",
    )


def _disk_group(zone: str, items: Iterable[Markup]) -> Markup:
    return tag("div", tag("h3", zone), tag("ul", *items, class_="disks"), class_="disk-zone")


def _disk_nodes(names: str) -> Markup:
    """The node that has the disk attached; with Multi-Attach several."""
    if ", " in names:
        return tag("span", names)
    return tag("a", names, href=f"#{node_id(names)}")


DISK_TONES = {"in-use": Tone.GOOD, "available": Tone.IDLE, "error": Tone.BAD}


def _disk(page: PageRequest, drawn: DrawnDisk) -> Markup:
    disk = drawn.disk
    tone = DISK_TONES.get(disk.state, Tone.BUSY)
    is_moving = disk.attachment in ("attaching", "detaching")
    state = (
        f"{disk.attachment} {'to' if disk.attachment == 'attaching' else 'from'}" if is_moving else disk.state
    )
    where = _disk_nodes(disk.node) if disk.node else None
    title: Content = tag("span", "no PersistentVolume", class_="orphan")
    if drawn.subject:
        title = tag("a", drawn.title, href=page.link(f"/object/{drawn.subject}"))
    return tag(
        "li",
        SIGNS[Tone.BUSY if is_moving else tone],
        tag("span", disk.id, class_="disk-id"),
        tag("span", f"{disk.size} GiB {disk.type}", class_="size"),
        tag("span", state, " ", where, class_="details"),
        title,
        class_=f"disk tone-{Tone.BUSY if is_moving else tone}",
    )
