"""Who may look at the live page."""

from __future__ import annotations

import pytest

from volplane.dashboard.gate import MAX_SESSIONS, MAX_TOKENS, Admitted, Gate, Refusal
from volplane.web import Request, Response
from volplane.web.message import Headers, header_pairs

PORT = 4711


def new_gate() -> Gate:
    gate = Gate()
    gate.port = PORT
    return gate


def ask(
    path: str, *headers: tuple[str, str], method: str = "GET", host: str = f"127.0.0.1:{PORT}"
) -> Request:
    return Request(method, path, Headers.of([("Host", host), *headers]))


def token_of(link: str) -> str:
    return link.partition("token=")[2]


def log_in(gate: Gate) -> tuple[str, str]:
    """Opens the page: the cookie, and the path that it is for."""
    answer = gate.exchange(token_of(gate.issue_link()))
    assert isinstance(answer, Response)
    sent = dict(header_pairs(answer.headers))
    return sent["Set-Cookie"].partition(";")[0], sent["Location"]


def test_a_token_opens_the_page_once() -> None:
    gate = new_gate()
    token = token_of(gate.issue_link())
    first = gate.exchange(token)
    assert isinstance(first, Response)
    assert first.status == 303
    assert gate.exchange(token) is Refusal.TOKEN


@pytest.mark.parametrize("token", ["", "x", "ü", "a" * 32])
def test_a_wrong_token_is_refused_and_uses_up_nothing(token: str) -> None:
    gate = new_gate()
    right = token_of(gate.issue_link())
    assert gate.exchange(token) is Refusal.TOKEN
    assert isinstance(gate.exchange(right), Response)


def test_the_cookie_is_for_this_path_only_and_no_script_reads_it() -> None:
    gate = new_gate()
    answer = gate.exchange(token_of(gate.issue_link()))
    assert isinstance(answer, Response)
    cookie = dict(header_pairs(answer.headers))["Set-Cookie"]
    assert f"Path={gate.prefix}/;" in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie


def test_a_request_needs_the_secret_path_and_the_cookie() -> None:
    gate = new_gate()
    cookie, path = log_in(gate)
    admitted = gate.admit(ask(path, ("Cookie", f"other=1; {cookie}")))
    assert isinstance(admitted, Admitted)
    assert admitted.path == "/cluster"
    assert gate.admit(ask(path)) is Refusal.SESSION
    assert gate.admit(ask("/cluster", ("Cookie", cookie))) is Refusal.SESSION
    assert gate.admit(ask(path, ("Cookie", cookie + "x"))) is Refusal.SESSION
    assert gate.admit(ask(path, ("Cookie", f"volplane-{PORT}="))) is Refusal.SESSION
    assert gate.admit(ask(path, ("Cookie", "\x7f=;=;;;"))) is Refusal.SESSION


def test_a_session_of_another_page_is_refused() -> None:
    here, there = new_gate(), new_gate()
    cookie, _ = log_in(there)
    assert here.admit(ask(f"{here.prefix}/cluster", ("Cookie", cookie))) is Refusal.SESSION


@pytest.mark.parametrize(
    "host", ["127.0.0.1:4711", "localhost:4711", "[::1]:4711", "127.0.0.1:8080", "localhost"]
)
def test_loopback_is_a_good_host_at_any_port_as_it_may_be_forwarded(host: str) -> None:
    assert new_gate().check(ask("/", host=host)) is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:4711",
        "127.0.0.1.evil.example:4711",
        "10.0.0.1:4711",
        "",
        "localhost.:4711",
        "[::2]:4711",
    ],
)
def test_a_foreign_host_header_is_refused(host: str) -> None:
    assert new_gate().check(ask("/", host=host)) is Refusal.HOST


def test_a_request_without_a_host_or_with_two_is_refused() -> None:
    gate = new_gate()
    assert gate.check(Request("GET", "/", Headers())) is Refusal.HOST
    assert gate.check(ask("/", ("Host", "localhost"))) is Refusal.HOST


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_but_reading_is_possible(method: str) -> None:
    assert new_gate().check(ask("/", method=method)) is Refusal.METHOD


def test_another_site_cannot_load_anything_but_may_link_to_the_page() -> None:
    gate = new_gate()
    sub = (("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "no-cors"))
    same_site = (("Sec-Fetch-Site", "same-site"), ("Sec-Fetch-Mode", "cors"))
    link = (("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "navigate"))
    assert gate.check(ask("/", *sub)) is Refusal.CROSS_SITE
    assert gate.check(ask("/", *same_site)) is Refusal.CROSS_SITE
    assert gate.check(ask("/", *link)) is None


def test_old_tokens_and_sessions_are_forgotten() -> None:
    gate = new_gate()
    first = token_of(gate.issue_link())
    for _ in range(MAX_TOKENS):
        gate.issue_link()
    assert gate.exchange(first) is Refusal.TOKEN
    cookie, path = log_in(gate)
    for _ in range(MAX_SESSIONS):
        log_in(gate)
    assert gate.admit(ask(path, ("Cookie", cookie))) is Refusal.SESSION
