import re
from dataclasses import fields

import pytest

from runner.model.result import BY_KEY, PAIR_NUMBERS, Sample
from runner.paths import ROOT
from runner.site import view as words
from runner.site.view import SWITCHABLE, value
from runner.units import format_digits


def test_every_number_of_a_sample_is_shown_with_a_definition() -> None:
    assert {metric.key for metric in PAIR_NUMBERS} == {field.name for field in fields(Sample)} - {
        "file_size",
        "definitions",
    }
    assert all(metric.formula for metric in PAIR_NUMBERS)
    assert set(SWITCHABLE) <= set(BY_KEY)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.0, "0.00"), (0.041, "0.04"), (9.994, "9.99"), (9.996, "10.0"), (99.97, "100"), (1204.4, "1,204")],
)
def test_three_digits_and_at_most_two_decimals(number: float, text: str) -> None:
    assert format_digits(number) == text
    assert format_digits(-number).lstrip("-") == text


def test_numbers_have_their_units() -> None:
    assert BY_KEY["goodput"].text(8_240_000) == "8.24\u202fMbit/s"
    assert BY_KEY["efficiency"].text(0.412) == "41.2\u202f%"
    assert BY_KEY["handshake_time"].text(1.204) == "1,204\u202fms"
    assert BY_KEY["lost_packets"].text(7) == "7"
    assert BY_KEY["ttfb"].text(None) == "–"
    assert value(None, "ttfb") is None
    assert value(Sample(file_size=1, ttfb=2.0), "ttfb") == 2.0


SCALE = ROOT / "web/static/scale.css"


def luminance(colour: str) -> float:
    """Relative luminance of `#rrggbb` (WCAG 2.2)."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, other: str) -> float:
    """Contrast ratio of two colours, 1 to 21 (WCAG 2.2)."""
    darker, lighter = sorted((luminance(first), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_text_is_readable_on_every_step_and_lightness_carries_the_order(dark: bool) -> None:
    steps = re.findall(r"light-dark\((#\w+),(#\w+)\);color:light-dark\((#\w+),(#\w+)\)", SCALE.read_text())
    shades = [(step[dark], step[2 + dark]) for step in steps]
    assert len(shades) == words.STEPS + 1
    assert min(contrast(*shade) for shade in shades) >= 4.5
    lightness = [luminance(background) for background, _ in shades]
    assert lightness == sorted(lightness, reverse=not dark)
    assert len(set(lightness)) == len(lightness)


def test_contrast_is_that_of_the_guidelines() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_efficiency_beyond_the_scale_takes_its_end() -> None:
    assert [words.step_of(eta) for eta in (-0.1, 0.0, 0.5, 1.0, 1.2)] == [0, 0, 20, 40, 40]
