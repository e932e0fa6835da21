"""The colour scale of η: similar hues from pale to deep, so that the order can be seen from the lightness only.

The anchors are ColorBrewer's YlGnBu, which people with any common colour vision deficiency can read. They are
interpolated in OKLab, where equal steps look equal (Ottosson 2020). On light pages the scale goes from pale to deep, on
dark pages from deep to pale.
"""

from math import cbrt

STEPS = 40
_ANCHORS = ("#fdfbe6", "#e3f3c4", "#b5dfbd", "#79c6bd", "#41adc0", "#2087ba", "#225fa6", "#223d8c")
_DARK_ANCHORS = ("#161c33", "#1c2c5c", "#1f4682", "#22699b", "#2f8ea8", "#55b3ae", "#97d3ae", "#dcefb8")
_INK, _PAPER = "#000000", "#ffffff"  # lighter ink than black would have a contrast below 4.5 in the middle of the scale

Triple = tuple[float, float, float]


def _linear(colour: str) -> Triple:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return red, green, blue


def _hex(linear: Triple) -> str:
    encoded = (12.92 * c if c <= 0.0031308 else 1.055 * c ** (1 / 2.4) - 0.055 for c in linear)
    return "#" + "".join(f"{round(255 * min(1.0, max(0.0, c))):02x}" for c in encoded)


def _to_oklab(colour: str) -> Triple:
    r, g, b = _linear(colour)
    long = cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b)
    medium = cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b)
    short = cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b)
    return (
        0.2104542553 * long + 0.7936177850 * medium - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * medium + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * medium - 0.8086757660 * short,
    )


def _from_oklab(lab: Triple) -> str:
    lightness, a, b = lab
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    return _hex(
        (
            4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
            -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
            -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
        )
    )


def luminance(colour: str) -> float:
    """Relative luminance of `#rrggbb` (WCAG 2.2)."""
    red, green, blue = _linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, other: str) -> float:
    """Contrast ratio of two colours, 1 to 21 (WCAG 2.2)."""
    darker, lighter = sorted((luminance(first), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def shade(step: int, *, dark: bool) -> tuple[str, str]:
    """Background and text colour of one step of the scale, 0 to `STEPS`."""
    anchors = _DARK_ANCHORS if dark else _ANCHORS
    position = step / STEPS * (len(anchors) - 1)
    index = min(int(position), len(anchors) - 2)
    part = position - index
    low, high = _to_oklab(anchors[index]), _to_oklab(anchors[index + 1])
    mixed = tuple(a + (b - a) * part for a, b in zip(low, high, strict=True))
    background = _from_oklab((mixed[0], mixed[1], mixed[2]))
    return background, max((_INK, _PAPER), key=lambda text: contrast(background, text))


def step_of(fraction: float) -> int:
    """The step of the scale for `fraction`. Values outside of 0…1 count as 0 or 1."""
    return round(STEPS * min(1.0, max(0.0, fraction)))


def stylesheet() -> str:
    """The CSS with one class `e<step>` for each step, for the light and the dark theme."""
    lines = []
    for step in range(STEPS + 1):
        (light, light_text), (dark, dark_text) = shade(step, dark=False), shade(step, dark=True)
        lines.append(
            f".e{step}{{background-color:light-dark({light},{dark});color:light-dark({light_text},{dark_text})}}"
        )
    return "\n".join(lines) + "\n"
