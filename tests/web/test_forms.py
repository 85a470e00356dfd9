"""Forms are encoded and decoded like `urllib.parse` does it."""

from __future__ import annotations

import random
from urllib.parse import parse_qsl, urlencode

import pytest

from volplane.web.forms import decode_form, encode_form

ALPHABET = "aZ09-_.~ +%&=;/:?#\x00\n\"'<>äß€𐍈"


@pytest.mark.parametrize("seed", range(50))
def test_a_form_is_encoded_and_decoded_like_in_the_standard_library(seed: int) -> None:
    rng = random.Random(seed)
    fields = {_text(rng): _text(rng) for _ in range(10)}
    body = encode_form(fields)
    assert body == urlencode(fields)
    assert decode_form(body) == parse_qsl(body, keep_blank_values=True) == list(fields.items())


@pytest.mark.parametrize(
    "body",
    ["", "&", "a", "a&b", "a=", "=a", "a=b=c", "&&a=1&&", "a=%", "a=%zz&b=%C3", "a+b=c+d", "a=%2", "%41=%42"],
)
def test_a_malformed_form_is_decoded_like_in_the_standard_library(body: str) -> None:
    assert decode_form(body) == parse_qsl(body, keep_blank_values=True)


def _text(rng: random.Random) -> str:
    return "".join(rng.choices(ALPHABET, k=rng.randrange(6)))
