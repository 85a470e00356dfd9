"""Flags are the fields of an options Struct."""

from __future__ import annotations

import pytest
from msgspec import Struct

from volplane.base.settings import BadFlag, Duration, flags, parse


class Settings(Struct, frozen=True):
    csi_address: str
    timeout: Duration = 15.0
    worker_threads: int = 10
    leader_election: bool = False
    kubeconfig: str | None = None
    audiences: tuple[str, ...] = ()
    factor: float = 100.0


def test_flags_are_read_as_upstream_writes_them() -> None:
    arguments = [
        "--csi-address=/csi/csi.sock",
        "--timeout",
        "1m30s",
        "--leader-election",
        "-v=5",
        "--worker-threads=3",
    ]
    assert parse(Settings, arguments) == Settings("/csi/csi.sock", 90.0, 3, True)


def test_what_only_upstreams_logging_knows_is_passed_over() -> None:
    arguments = ["--logtostderr", "--v", "5", "--alsologtostderr=false", "--csi-address=x", "--automaxprocs"]
    assert parse(Settings, arguments) == Settings("x")


def test_a_flag_without_a_meaning_is_passed_over_with_its_value() -> None:
    assert parse(Settings, ["--mode", "old", "--csi-address=x"], unused={"mode"}) == Settings("x")
    with pytest.raises(BadFlag, match="unknown flag: --mode"):
        parse(Settings, ["--mode=old", "--csi-address=x"])


def test_a_list_may_be_repeated_or_separated_by_commas() -> None:
    assert parse(Settings, ["--csi-address=x", "--audiences=a,b", "--audiences=c"]).audiences == (
        "a",
        "b",
        "c",
    )


def test_a_bool_can_be_switched_off() -> None:
    assert parse(Settings, ["--csi-address=x", "--leader-election=false"]).leader_election is False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nope=1"], "unknown flag: --nope"),
        (["--csi-address=x", "--timeout=soon"], 'invalid value "soon" for flag --timeout'),
        (["--csi-address=x", "--leader-election=maybe"], "neither true nor false"),
        ([], "required flag not set: --csi-address"),
        (["--csi-address"], "flag needs a value: --csi-address"),
        (["plain"], "unexpected argument: plain"),
    ],
)
def test_a_bad_flag_is_named_with_the_reason(arguments: list[str], message: str) -> None:
    with pytest.raises(BadFlag, match=message.replace("(", r"\(")):
        parse(Settings, arguments)


def test_every_field_is_a_flag() -> None:
    assert set(flags(Settings)) == {
        "csi-address", "timeout", "worker-threads", "leader-election", "kubeconfig", "audiences", "factor",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text"),
    [("timeout", "15s"), ("factor", "100"), ("leader-election", "false"), ("audiences", "")],
)
def test_a_default_is_shown_as_the_user_types_it(name: str, text: str) -> None:
    assert flags(Settings)[name].default_text == text


def test_a_factor_is_not_a_duration() -> None:
    assert parse(Settings, ["--csi-address=x", "--factor=2.5"]).factor == 2.5
    with pytest.raises(BadFlag, match='invalid value "15s" for flag --factor: not a number'):
        parse(Settings, ["--csi-address=x", "--factor=15s"])
