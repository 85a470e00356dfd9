"""The message of a failed assertion of csi-sanity, out of the values that it prints."""

from __future__ import annotations

import pytest

from volplane.testing import sanity

STATUS = """Unexpected error:
    <*status.Error | 0x1f338191ce78>: 
    rpc error: code = FailedPrecondition desc = published at /a/own
    {
        s: {
            s: {
                Code: 9,
                Message: "published at /a/own",
            },
        },
    }
occurred"""
CODES = """unexpected error: there is no volume x
Expected
    <codes.Code>: 13
to equal
    <codes.Code>: 5"""


def reason(message: str, *, file: str = "a/node.go", **more: object) -> str:
    spec = {
        "ContainerHierarchyTexts": ["Node Service", "NodeExpandVolume"],
        "LeafNodeType": "It",
        "LeafNodeText": "works",
        "State": "failed",
        "Failure": {
            "Message": message,
            "Location": {"FileName": file, "LineNumber": 263},
            "FailureNodeLocation": {"FileName": "b/node.go", "LineNumber": 7},
            **more,
        },
    }
    made = sanity._result(spec)
    assert made is not None
    return made.reason


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (STATUS, "FAILED_PRECONDITION (published at /a/own), expected OK (node.go:263)"),
        (CODES, "NodeExpandVolume: INTERNAL (there is no volume x), expected NOT_FOUND (node.go:263)"),
        (
            "Expected an error to have occurred.  Got:\n    <nil>: nil",
            "NodeExpandVolume: OK, expected an error (node.go:263)",
        ),
        (
            "Expected\n    <string>: vol-1\nto equal\n    <string>: vol-2",
            "Expected vol-1 to equal vol-2 (node.go:263)",
        ),
        ("Timed out after 5 s", "Timed out after 5 s (node.go:263)"),
    ],
    ids=["an error", "a code", "no error", "values", "words"],
)
def test_the_reason_is_one_line_with_the_message(message: str, expected: str) -> None:
    assert reason(message) == f"csi-sanity: {expected}"


def test_the_place_is_the_line_of_the_spec() -> None:
    assert reason("Boom", file="x/util.go") == "csi-sanity: Boom (node.go:7)"


def test_a_panic_says_what_it_was() -> None:
    assert reason("Test Panicked", ForwardedPanic="nil map") == "csi-sanity: nil map (node.go:263)"
