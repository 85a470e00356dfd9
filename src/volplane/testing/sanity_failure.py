"""Why a spec of csi-sanity failed, in one line with the assertion's own message.

The suite prints the Go values of an assertion over many lines, gRPC errors with all their fields and codes as
numbers. Here the same failure reads as in our own cases: "INTERNAL (no such volume), expected NOT_FOUND".
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from volplane.csi.outcome import Code
from volplane.csi.services import METHODS

_CODES = {code.go_name: code.name for code in Code}
_WRONG_CODE = re.compile(
    r"(?:unexpected error: (?P<message>.*?)\s+)?Expected\s+<codes\.Code>: (?P<found>\d+)\s+"
    r"to equal\s+<codes\.Code>: (?P<expected>\d+)",
    re.DOTALL,
)
_GO_ERROR = re.compile(r"rpc error: code = (?P<code>\w+) desc = (?P<message>[^\n]*)")
_NO_ERROR = re.compile(r"Expected an error to have occurred\.")
_TYPE = re.compile(r"<[^<>\n]*>: ")  # "<string>: ", "<*status.Error | 0xc000123>: "
_HELPERS = ("util.go",)  # the line of a helper says nothing; the spec's own does


def describe(spec: Mapping[str, Any]) -> str:
    """The reason of a failed spec; "" if it has none."""
    failure = spec.get("Failure") or {}
    message = str(failure.get("ForwardedPanic") or failure.get("Message") or "").strip()
    if not message:
        return ""
    place = _location(failure)
    return _translate(message, _method(spec)) + (f" ({place})" if place else "")


def _translate(message: str, method: str) -> str:
    prefix = f"{method}: " if method else ""
    if wrong := _WRONG_CODE.search(message):
        found, expected = (_code_name(wrong[group]) for group in ("found", "expected"))
        text = f"{found} ({wrong['message']})" if wrong["message"] else found
        return f"{prefix}{text}, expected {expected}"
    if error := _GO_ERROR.search(message):
        # Any call of the spec may have failed, not only the one that it tests.
        return f"{_CODES.get(error['code'], error['code'])} ({error['message']}), expected OK"
    if _NO_ERROR.search(message):
        return f"{prefix}OK, expected an error"
    return " ".join(_TYPE.sub("", message).split())


def _code_name(number: str) -> str:
    try:
        return Code(int(number)).name
    except ValueError:
        return number


def _method(spec: Mapping[str, Any]) -> str:
    """The call that the spec is about, by the headings above it."""
    return next((text for text in spec.get("ContainerHierarchyTexts") or () if text in METHODS), "")


def _location(failure: Mapping[str, Any]) -> str:
    for key in ("Location", "FailureNodeLocation"):
        place = failure.get(key) or {}
        name = os.path.basename(place.get("FileName", ""))
        if name and name not in _HELPERS:
            return f"{name}:{place.get('LineNumber', 0)}"
    return ""
