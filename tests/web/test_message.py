"""Headers, queries and request targets."""

from __future__ import annotations

import pytest

from volplane.web import BodyTooLarge, Headers, Query, Request
from volplane.web.message import format_head


def test_headers_are_found_in_any_case_and_keep_all_values() -> None:
    versions = [("X-Stream-Protocol-Version", "v5"), ("x-stream-protocol-version", "v4")]
    headers = Headers.of([("Accept", "a"), *versions])
    assert headers.get("accept") == "a"
    assert headers.get("X-STREAM-Protocol-version") == "v5"
    assert headers.all("x-stream-protocol-version") == ["v5", "v4"]
    assert headers.get("missing") == ""
    assert headers.get("missing", "x") == "x"
    assert "ACCEPT" in headers
    assert next(headers.items()) == ("Accept", "a")


def test_words_of_a_list_header_are_lower_case() -> None:
    assert Headers.of({"Connection": "keep-alive, Upgrade"}).tokens("connection") == ["keep-alive", "upgrade"]


def test_headers_do_not_show_their_values_by_accident() -> None:
    assert "secret" not in repr(Headers.of({"Authorization": "Bearer secret"}))


def test_a_query_keeps_repeated_and_empty_values() -> None:
    query = Query("command=sh&command=-c&stdin=true&tty=&labelSelector=a%3Db%2Cc+d")
    assert query.all("command") == ["sh", "-c"]
    assert query.flag("stdin")
    assert not query.flag("tty")
    assert not query.flag("absent")
    assert "tty" in query
    assert query.get("labelSelector") == "a=b,c d"
    assert query.raw.startswith("command=sh&")


@pytest.mark.parametrize("text", ["1", "t", "T", "true", "True", "TRUE"])
def test_flags_are_what_go_takes_for_true(text: str) -> None:
    assert Query(f"x={text}").flag("x")


def test_a_path_is_decoded_and_kept_raw() -> None:
    request = Request("GET", "/api/v1/namespaces/a%2Fb/pods?x=%2F", Headers())
    assert request.path == "/api/v1/namespaces/a/b/pods"
    assert request.raw_path == "/api/v1/namespaces/a%2Fb/pods"
    assert request.query.get("x") == "/"


def test_a_body_over_the_limit_raises_when_it_is_looked_at() -> None:
    with pytest.raises(BodyTooLarge):
        _ = Request("POST", "/", Headers(), None).body


def test_a_line_break_cannot_be_smuggled_into_a_header() -> None:
    with pytest.raises(ValueError, match="line break"):
        format_head("HTTP/1.1 200 OK", {"X": "a\r\nSet-Cookie: b"})


async def test_a_request_without_a_connection_cannot_be_upgraded() -> None:
    with pytest.raises(RuntimeError):
        await Request("GET", "/", Headers()).upgrade({})
