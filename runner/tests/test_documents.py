"""Every file that a document, a docstring or a comment cites exists."""

import re
import subprocess
from pathlib import Path

import pytest

from runner.diagnose.explain import PATTERNS
from runner.model.result import Limit
from runner.paths import ROOT

FOLDERS = ("docs", "runner", "testcases", "implementations", "sim", "guest", "web", "ci")
# a file with a folder of the repository, in prose or in code
CITED = re.compile(rf"(?<![\w./-])((?:{'|'.join(FOLDERS)})/[\w./-]*\.(?:py|md|json|c|h|cc|go|rs|toml|sh|js|css))\b")
LINKED = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")
GENERATED = ("web/site/", "web/static/plotly", "sim/truth.json")  # sim/truth.json is in the folder of each job
OTHERS = {"runner/site/exports.py": {"web/" + "script.js"}}  # files of the public runner
PLACEHOLDER = "NAME"
SOURCES = (".md", ".py", ".c", ".h", ".cc", ".go", ".rs", ".java", ".sh", ".js", ".html", "Dockerfile")


def documents() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [ROOT / name for name in listed if name.endswith(SOURCES) and (ROOT / name).is_file()]


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_cited_files_exist(path: Path) -> None:
    text = path.read_text()
    others = OTHERS.get(path.relative_to(ROOT).as_posix(), set())
    cited = {
        ROOT / name
        for name in CITED.findall(text)
        if not name.startswith(GENERATED) and name not in others and PLACEHOLDER not in name
    }
    if path.suffix == ".md":
        cited |= {path.parent / name for name in LINKED.findall(text)}
    missing = sorted(file.relative_to(ROOT).as_posix() for file in cited if not file.exists())
    assert not missing, f"cited, and not there: {', '.join(missing)}"


def test_the_page_of_diagnoses_has_every_code() -> None:
    text = (ROOT / "docs" / "diagnoses.md").read_text()
    rows = set(re.findall(r"^\| `([\w-]+)` \| ([^|]+) \| ([^|]*?) ?\|", text, re.MULTILINE))
    assert rows == {(each.code, each.meaning, each.over_tcp) for each in PATTERNS.values()}
    limits = re.findall(r"^\| ([a-z ]+) \| [A-Z]", text, re.MULTILINE)
    assert limits == [limit.value for limit in Limit]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100
