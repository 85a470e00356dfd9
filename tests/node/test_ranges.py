"""Which addresses pods get."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

import pytest

from volplane.node.network import address_ranges


@pytest.mark.parametrize(
    ("nodes", "prefix"), [(0, 22), (1, 22), (4, 22), (5, 21), (16, 20), (17, 19), (1000, 14)]
)
def test_a_range_has_a_share_for_every_node(nodes: int, prefix: int) -> None:
    assert address_ranges.prefix_for(nodes) == prefix
    whole = next(address_ranges.candidates(prefix, "x"))
    shares = [address_ranges.node_range(whole, index) for index in range(1, nodes + 1)]
    assert len(set(shares)) == nodes
    assert all(share.subnet_of(whole) for share in shares)
    assert address_ranges.fits_nodes(whole, nodes)
    assert not address_ranges.fits_nodes(whole, 4096)


def test_candidates_differ_between_clusters_and_stay_for_one() -> None:
    assert next(address_ranges.candidates(22, "/a")) == next(address_ranges.candidates(22, "/a"))
    assert next(address_ranges.candidates(22, "/a")) != next(address_ranges.candidates(22, "/b"))
    everything = list(address_ranges.candidates(22, "/a"))
    assert len(set(everything)) == len(everything) == 4096 - 64
    assert all(one.subnet_of(address_ranges.SPACE) for one in everything)
    assert not any(one.overlaps(other) for one in everything for other in address_ranges.AVOIDED)


def test_an_address_rests_before_it_is_given_out_again() -> None:
    share, taken, last = IPv4Network("100.64.8.0/24"), set[IPv4Address](), 250
    given = []
    for _ in range(6):
        found = address_ranges.next_free(share, taken, last)
        assert found is not None
        given.append(found[1])
        last = found[1]
    assert given == [251, 252, 253, 2, 3, 4]


def test_what_is_taken_is_left_out_until_nothing_is_free() -> None:
    share, taken = IPv4Network("100.64.8.0/29"), set[IPv4Address]()
    last = 200  # of a larger share
    while found := address_ranges.next_free(share, taken, last):
        taken.add(found[0])
        last = found[1]
    assert sorted(int(a) - int(share.network_address) for a in taken) == [2, 3, 4, 5]
    assert address_ranges.service_address(share) == share[6]
