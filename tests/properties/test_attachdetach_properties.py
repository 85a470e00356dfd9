"""Pods come and go, nodes mount and unmount, the attacher works: the disk is never in two places.

A little world of one volume and three nodes obeys the hand-shake of the contract. Hypothesis decides who
acts next; a crash loses what the controller knew besides the objects. When everybody has had time, the
world is at rest with the volume where it is wanted.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from volplane.api import codec
from volplane.api.core import Pod
from volplane.controllers.attachdetach import plan as p
from volplane.controllers.attachdetach.plan import AttachDetachView, ExistingAttachment, NodeFacts, plan
from volplane.rules.waits import Wait

NODES = ("a", "b", "c")
POD = codec.convert(Pod, {"metadata": {"name": "p", "namespace": "default"}})


class Disk:
    """One volume, seen by everybody through objects."""

    def __init__(self, shared: bool) -> None:
        self.shared = shared
        self.wanted: set[str] = set()
        self.held: dict[str, ExistingAttachment] = {}
        self.listed: set[str] = set()
        self.in_use: set[str] = set()
        self.reported: set[str] = set()

    def view(self) -> AttachDetachView:
        places = {n: NodeFacts(in_use=n in self.in_use, listed=n in self.listed) for n in NODES}
        held = [self.held[n] for n in sorted(self.held)]
        wanted = {n: [POD] for n in self.wanted}
        return AttachDetachView(
            "pv",
            "d",
            "h",
            shareable=self.shared,
            wanted=wanted,
            attachments=held,
            nodes=places,
            reported=frozenset(self.reported),
        )

    def control(self, most: int = 99) -> bool:
        """The controller's turn; it may die after any step."""
        wrote = False
        for step in list(plan(self.view()))[:most]:
            match step:
                case p.CreateAttachment(node):
                    self.held.setdefault(node, ExistingAttachment(node, f"va-{node}"))
                case p.DeleteAttachment(held, check):
                    if check and held.node in self.in_use:
                        return wrote  # the live look fails, and so does the round
                    assert held.node not in self.in_use, "detached under a healthy node's mount"
                    assert held.node not in self.listed, "detached while volumesAttached lists it"
                    self.held[held.node] = structs.replace(held, deleting=True)
                case p.AddToVolumesAttached(node):
                    self.listed.add(node)
                case p.RemoveFromVolumesAttached(node):
                    self.listed.discard(node)
                case p.ReportMultiAttach(node):
                    self.reported.add(node)
                case Wait() | p.ReportAttachFailure():
                    continue
            wrote = True
        self.reported &= self.wanted
        return wrote

    def attacher(self, node: str) -> None:
        held = self.held.get(node)
        if held is None:
            return
        if held.deleting:
            assert node not in self.in_use, "the disk is taken away from a mount"
            del self.held[node]
        elif not held.attached:
            self.held[node] = structs.replace(held, attached=True)
            holders = [h.node for h in self.held.values() if h.attached]
            assert self.shared or len(holders) == 1, f"in two places: {holders}"

    def node(self, node: str) -> None:
        """Says that it uses the volume, then mounts it if it is listed; unmounts what no pod needs."""
        if node in self.wanted and node in self.listed:
            self.in_use.add(node)
        elif node not in self.wanted:
            self.in_use.discard(node)


moves = st.one_of(
    st.tuples(st.just("pod"), st.sampled_from(NODES)),
    st.tuples(st.just("attacher"), st.sampled_from(NODES)),
    st.tuples(st.just("node"), st.sampled_from(NODES)),
    st.tuples(st.just("control"), st.integers(0, 3)),
    st.tuples(st.just("control"), st.just(99)),
    st.tuples(st.just("crash"), st.just(0)),
)


@settings(max_examples=400, deadline=None)
@given(st.booleans(), st.lists(moves, max_size=60))
def test_the_disk_is_where_it_is_wanted_and_never_in_two_places(
    shared: bool, turns: list[tuple[str, str | int]]
) -> None:
    disk = Disk(shared)
    for who, what in turns:
        match who, what:
            case "pod", str(node):
                disk.wanted ^= {node}
            case "attacher", str(node):
                disk.attacher(node)
            case "node", str(node):
                disk.node(node)
            case "control", int(most):
                disk.control(most)
            case "crash", _:
                disk.reported.clear()
    for _ in range(12):  # everybody gets enough turns
        for node in NODES:
            disk.node(node)
            disk.attacher(node)
        disk.control()
    holders = {h.node for h in disk.held.values() if h.attached}
    assert disk.control() is False, "the plan does not come to rest"
    assert disk.listed == holders
    if shared:
        assert holders == disk.wanted
    else:
        assert holders <= disk.wanted
        assert len(holders) == min(len(disk.wanted), 1)
