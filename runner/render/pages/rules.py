"""The page *Rules*: broken protocol rules by rule and stack, with the jobs that prove them. It includes rules that a
job's case is not about."""

from collections import defaultdict
from typing import Any

from runner.model.job import Job
from runner.model.result import Finding
from runner.render.pages import Page, Pages
from runner.render.view import RunView

NAV = (7, "Rules", "rules/index.html")
NEEDS = "stacks"
_SHOWN = 4  # at most, jobs of a rule and a stack


def pages(view: RunView) -> Pages:
    """The page."""
    yield Page("rules/index.html", "rules.html", {"rows": _rows(view)})


def _rows(view: RunView) -> list[dict[str, Any]]:
    """One row for each rule, role and stack that broke it, the most frequent first within a rule."""
    broken: dict[tuple[str, str, str], list[tuple[Job, Finding]]] = defaultdict(list)
    for job, result in view.results.items():
        for finding in result.violations:
            stack = job.server if finding.role == "server" else job.client
            broken[finding.code, finding.role, stack].append((job, finding))
    rows = [
        {
            "code": code,
            "role": role,
            "stack": stack,
            "section": jobs[0][1].section,
            "requirement": jobs[0][1].requirement,
            "count": len(jobs),
            "jobs": jobs[:_SHOWN],
        }
        for (code, role, stack), jobs in broken.items()
    ]
    return sorted(rows, key=lambda row: (row["section"], row["code"], -row["count"], row["stack"]))
