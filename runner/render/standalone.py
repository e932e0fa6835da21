"""Turns a chart of a page into an SVG file. The file contains the colours of the light theme themselves, because some
programs don't know CSS variables."""

import re
from functools import lru_cache

from runner.paths import ROOT
from runner.render.charts import GROUPS

_STYLE = ROOT / "web" / "static" / "style.css"
_PAIR = re.compile(r"light-dark\((#[0-9a-f]+),\s*#[0-9a-f]+\)")
_PROPERTY = re.compile(r"(--[\w-]+):\s*([^;]+);")
_RULE = re.compile(r"^((?:svg\.(?:chart|offset|heat)|svg |\.mark|\.g\d)[^{\n]*)\{([^}]*)\}", re.MULTILINE)
_VARIABLE = re.compile(r"var\((--[\w-]+)\)")


@lru_cache(maxsize=1)
def _style() -> str:
    text = _PAIR.sub(r"\1", _STYLE.read_text(encoding="utf-8"))
    known = dict(_PROPERTY.findall(text.partition("}")[0]))
    groups = dict(re.findall(r"^\.g(\d) \{ --g: ([^;]+); \}", text, re.MULTILINE))

    def plain(value: str) -> str:
        return _VARIABLE.sub(lambda match: known.get(match[1], match[0]), value)

    rules = ["text{font-family:sans-serif}"]
    for selector, body in _RULE.findall(text):
        if _bare(selector) == "svg":
            continue  # this rule only sizes the drawing inside a page
        if "var(--g)" not in body:
            rules.append(f"{_bare(selector)}{{{plain(body)}}}" if "--g:" not in body else "")
            continue
        for number in range(GROUPS):
            coloured = plain(body.replace("var(--g)", plain(groups.get(str(number), "#000"))))
            rules.append(f".g{number}{_bare(selector)}{{{coloured}}}")
    return "".join(rules)


def _bare(selector: str) -> str:
    """The selector without the CSS class of the drawing, because the file contains only one drawing."""
    return re.sub(r"^svg(\.\w+)? ?", "", selector.strip()) or "svg"


def standalone(svg: str) -> bytes:
    """The content of an SVG file, from the inline `svg` of a page."""
    width, height = re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)[0]
    opened = str(svg).replace("<svg ", f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" ', 1)
    # Links are removed, because their targets don't exist outside of the site.
    plain = re.sub(r"</?a\b[^>]*>", "", opened)
    head, body = plain.split(">", 1)
    back = f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    return f"{head}><style>{_style()}</style>{back}{body}\n".encode()
