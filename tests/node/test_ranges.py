"""Which addresses pods get."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

import pytest

from volplane.node.network import ranges


@pytest.mark.parametrize(
    ("nodes", "prefix"), [(0, 22), (1, 22), (4, 22), (5, 21), (16, 20), (17, 19), (1000, 14)]
)
def test_a_range_has_a_share_for_every_node(nodes: int, prefix: int) -> None:
    assert ranges.prefix_for(nodes) == prefix
    whole = next(ranges.candidates(prefix, "x"))
    shares = [ranges.share(whole, index) for index in range(1, nodes + 1)]
    assert len(set(shares)) == nodes
    assert all(share.subnet_of(whole) for share in shares)
    assert ranges.holds(whole, nodes)
    assert not ranges.holds(whole, 4096)


def test_candidates_differ_between_clusters_and_stay_for_one() -> None:
    assert next(ranges.candidates(22, "/a")) == next(ranges.candidates(22, "/a"))
    assert next(ranges.candidates(22, "/a")) != next(ranges.candidates(22, "/b"))
    everything = list(ranges.candidates(22, "/a"))
    assert len(set(everything)) == len(everything) == 4096 - 64
    assert all(one.subnet_of(ranges.SPACE) for one in everything)
    assert not any(one.overlaps(other) for one in everything for other in ranges.AVOIDED)


def test_an_address_rests_before_it_is_given_out_again() -> None:
    share, taken, last = IPv4Network("100.64.8.0/24"), set[IPv4Address](), 250
    given = []
    for _ in range(6):
        found = ranges.next_free(share, taken, last)
        assert found is not None
        given.append(found[1])
        last = found[1]
    assert given == [251, 252, 253, 254, 2, 3]


def test_what_is_taken_is_left_out_until_nothing_is_free() -> None:
    share, taken = IPv4Network("100.64.8.0/29"), set[IPv4Address]()
    last = 200  # of a larger share
    while found := ranges.next_free(share, taken, last):
        taken.add(found[0])
        last = found[1]
    assert sorted(int(a) - int(share.network_address) for a in taken) == [2, 3, 4, 5, 6]
