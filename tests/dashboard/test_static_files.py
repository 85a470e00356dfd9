"""The stylesheets and the script: readable colours, and nothing from elsewhere."""

from __future__ import annotations

import re

import pytest

from volplane.dashboard.assets import DIRECTORY, load_assets
from volplane.explain.journey.diagram import read_style

LEAST = 4.5  # contrast of text, as WCAG 2.2 demands at level AA
STYLES = {"page": (DIRECTORY / "page.css").read_text(), "diagram": read_style()}
TEXT = {
    "page": [
        *((text, back) for text in ("ink", "dim", "link") for back in ("card", "paper", "raised", "soft")),
        *(
            (tone, back)
            for tone in ("good", "busy", "warn", "bad", "idle")
            for back in ("card", f"{tone}-soft")
        ),
    ],
    "diagram": [(text, "sheet") for text in ("name", "text", "faint", "arrow", "wrong")],
}
CASES = [
    (style, scheme, text, back)
    for style in TEXT
    for scheme in ("light", "dark")
    for text, back in TEXT[style]
]


def colors(style: str, scheme: str) -> dict[str, str]:
    light, _, dark = style.partition("@media (prefers-color-scheme: dark)")
    found = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{3,6})\b", light))
    if scheme == "dark":
        found |= dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{3,6})\b", dark.partition("\n}")[0]))
    return found


def luminance(color: str) -> float:
    digits = color[1:] if len(color) == 7 else "".join(2 * digit for digit in color[1:])
    channels = [int(digits[n : n + 2], 16) / 255 for n in (0, 2, 4)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize(("style", "scheme", "text", "back"), CASES)
def test_text_can_be_read_on_what_is_behind_it(style: str, scheme: str, text: str, back: str) -> None:
    known = colors(STYLES[style], scheme)
    high, low = sorted((luminance(known[text]), luminance(known[back])), reverse=True)
    assert (high + 0.05) / (low + 0.05) >= LEAST, f"{text} {known[text]} on {back} {known[back]}"


def test_nothing_is_loaded_from_elsewhere() -> None:
    for path, content in load_assets().content.items():
        text = content.decode().replace("http://www.w3.org/2000/svg", "")
        assert "//" not in re.sub(r"(?m)(^|\s)//.*$", "", text), path
        assert "@import" not in text, path
        assert "eval(" not in text, path


def test_a_file_has_another_path_when_it_changes() -> None:
    assets = load_assets()
    for path in (*assets.styles, assets.script, assets.icon):
        answer = assets.answer(path)
        assert answer is not None
        assert "immutable" in dict(answer.headers)["Cache-Control"]
        assert re.fullmatch(r"/[a-z]+\.[0-9a-f]{12}\.(css|js|svg)", path)
    assert assets.answer("/page.css") is None
