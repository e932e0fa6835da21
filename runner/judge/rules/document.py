"""Writes the table of rules as docs/rules.md: `python -m runner.judge.rules.document`."""

from collections.abc import Mapping
from itertools import groupby

from runner.config.catalog import load_cases
from runner.judge.rules import RULES, Rule, Where
from runner.paths import ROOT

PAGE = ROOT / "docs" / "rules.md"

_HEAD = """# Rules of the RFCs, and where they are checked

Each row is a MUST or a MUST NOT, except the rows with *as a note*, which the RFC only recommends. *Every connection*:
the rule is checked in every job. `./bentpipe show`, the page of the pair and `result.json` (`violations`; the code is
the rule's id) list broken rules, and matrices show them as §. A broken rule makes the job fail only when the purpose of
the case depends on the rule: *red in* names these cases. For rules that are *unchecked* or *not visible*, the table
gives the reason. An endpoint is judged by the packets that it sent and received at its own end of the link.

This page is generated from `runner/judge/rules` by `python -m runner.judge.rules.document`.
"""


def text() -> str:
    """The page in Markdown."""
    checked = sum(rule.checked for rule in RULES)
    lines = [_HEAD, f"{checked} of {len(RULES)} rules are checked.", ""]
    depends = {name: case.depends for name, case in sorted(load_cases().items()) if case.depends}
    for rfc, rules in groupby(RULES, key=lambda rule: rule.rfc):
        lines += [f"## RFC {rfc}", "", "| id | who | rule | checked |", "| --- | --- | --- | --- |"]
        lines += [f"| `{rule.id}` | {rule.who} | {rule.requirement} | {_where(rule, depends)} |" for rule in rules]
        lines.append("")
    return "\n".join(lines)


def _where(rule: Rule, depends: Mapping[str, tuple[str, ...]]) -> str:
    if rule.where is Where.INVARIANT:
        red = ", ".join(name for name, beginnings in depends.items() if rule.id.startswith(beginnings))
        return "every connection" + (f"; red in {red}" if red else "")
    if rule.where is Where.NOTE:
        return "every connection, as a note"
    if rule.where is Where.CASE:
        return "case " + ", ".join(rule.cases)
    return f"{'unchecked' if rule.where is Where.UNCHECKED else 'not visible'}: {rule.reason}"


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(text())
