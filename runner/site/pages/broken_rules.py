"""The page *Rules*: broken protocol rules by rule and stack, with the jobs in which they were broken. It includes rules
that the job's case does not test."""

from collections import defaultdict
from typing import Any

from runner.model.result import Finding
from runner.model.run import Job
from runner.site.pages import Page, Pages
from runner.site.view import RunView

NAV = (7, "Rules", "rules/index.html")
NEEDS = "stacks"
_SHOWN = 4  # largest number of jobs that are shown for one rule and stack


def pages(view: RunView) -> Pages:
    """The page."""
    yield Page("rules/index.html", "rules.html", {"rows": _rows(view)})


def _rows(view: RunView) -> list[dict[str, Any]]:
    """One row for each rule, and for each role and stack that broke the rule. Within a rule, rows with more jobs come
    first."""
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
