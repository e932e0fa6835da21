"""The page *Rules*: broken protocol rules by rule and stack, with the jobs in which they were broken. It includes rules
that the job's case does not test."""

from collections import defaultdict
from typing import Any

from runner.model.result import Finding
from runner.model.rules import BY_ID
from runner.site.pages import Page, Pages
from runner.site.view import Cell, RunView

NAV = (7, "Rules", "rules/index.html")
NEEDS = "stacks"
_SHOWN = 4  # largest number of jobs that are shown for one rule and stack


def pages(view: RunView) -> Pages:
    yield Page("rules/index.html", "rules.html", {"rows": _rows(view)})


def _rows(view: RunView) -> list[dict[str, Any]]:
    """One row for each rule, and for each role and stack that broke the rule. Within a rule, rows with more jobs come
    first."""
    broken: dict[tuple[str, str, str], list[tuple[Cell, Finding]]] = defaultdict(list)
    for cell in view.table.values():
        for finding in (finding for result in cell.results for finding in result.violations):
            stack = cell.server if finding.role == "server" else cell.stack
            broken[finding.code, finding.role, stack].append((cell, finding))
    rows = [
        {
            "code": code,
            "role": role,
            "stack": stack,
            "section": jobs[0][1].section,
            "requirement": jobs[0][1].requirement,
            "consequence": BY_ID[code].consequence if code in BY_ID else "",
            "count": len(jobs),
            "jobs": jobs[:_SHOWN],
        }
        for (code, role, stack), jobs in broken.items()
    ]
    return sorted(rows, key=lambda row: (row["section"], row["code"], -row["count"], row["stack"]))
