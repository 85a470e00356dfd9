"""The ports of a cluster while other clusters start."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from volplane.cluster import data_directory
from volplane.cluster.data_directory import DataDirectory


def ports(made: data_directory.SavedCluster) -> list[int]:
    nodes = [*made.kubelet_ports.values(), *made.metadata_ports.values()]
    return [made.port, made.cloud_port, made.controller_manager_port, *nodes]


def test_clusters_that_start_at_the_same_time_choose_different_ports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = itertools.chain.from_iterable([number] * 3 for number in itertools.count(21_000))
    monkeypatch.setattr(
        data_directory, "free_port", lambda: next(drawn)
    )  # everybody draws the same, again and again
    places = [DataDirectory(tmp_path / name) for name in "abc"]
    try:
        one, other = (ports(place.prepare_ports_and_keys(nodes=2)) for place in places[:2])
        assert len({*one, *other}) == 14
        places[0].release()
        released = iter(one)
        monkeypatch.setattr(data_directory, "free_port", lambda: next(released))
        assert places[2].prepare_ports_and_keys(port=1).cloud_port == one[0]
    finally:
        for place in places:
            place.release()


def test_a_port_that_people_know_stays_and_the_others_give_way(tmp_path: Path) -> None:
    first, second = DataDirectory(tmp_path / "a"), DataDirectory(tmp_path / "a")
    first.create()
    try:
        held = first.prepare_ports_and_keys(nodes=1)
        first.save(held)
        again = second.prepare_ports_and_keys(nodes=1)
        assert again.port == held.port
        assert not {*ports(again)[1:]} & set(ports(held))
    finally:
        first.release()
        second.release()
