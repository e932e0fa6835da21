"""The files of `ci/`: they are short where users copy them, and GitHub and GitLab accept them."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runner.cli.group import main
from runner.paths import ROOT

CI = ROOT / "ci"
VALIDATOR = "check_jsonschema"  # this package contains the schemas that GitHub and GitLab publish


def accepted(schema: str, path: Path, *more: str) -> None:
    command = [sys.executable, "-m", VALIDATOR, "--builtin-schema", f"vendor.{schema}", *more, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_github_accepts_the_action_and_the_example() -> None:
    accepted("github-actions", CI / "action.yml")
    accepted("github-workflows", CI / "github-workflow.example.yml")


def test_gitlab_accepts_the_template_and_the_example(tmp_path: Path) -> None:
    header, job = (CI / "gitlab.yml").read_text().split("\n---\n")
    assert "spec:" in header
    (tmp_path / "job.yml").write_text(job)
    accepted("gitlab-ci", tmp_path / "job.yml", "--data-transform", "gitlab-ci")
    accepted("gitlab-ci", CI / "gitlab.example.yml", "--data-transform", "gitlab-ci")
    declared = set(re.findall(r"^    (\w+):", header, re.MULTILINE))
    used = set(re.findall(r"\$\[\[ inputs\.(\w+) \]\]", job))
    given = set(re.findall(r"^      (\w+):", (CI / "gitlab.example.yml").read_text(), re.MULTILINE))
    assert used == declared
    assert given <= declared


@pytest.mark.parametrize("name", ["action.yml", "github-workflow.example.yml", "gitlab.yml"])
def test_code_of_others_is_named_by_its_commit(name: str) -> None:
    text = (CI / name).read_text()
    used = re.findall(r"uses: ([^@\s]+)@(\S+)", text)
    assert all(re.fullmatch("[0-9a-f]{40}|COMMIT", commit) for _, commit in used), used
    if name == "gitlab.yml":
        assert "\n  cache:" not in text
        assert "inputs.commit" in text.partition("fetch")[2]


@pytest.mark.parametrize("name", ["github-workflow.example.yml", "gitlab.example.yml"])
def test_a_user_writes_fifteen_lines_at_most(name: str) -> None:
    assert len((CI / name).read_text().splitlines()) <= 15


def test_the_example_and_the_steps_use_inputs_that_the_action_declares() -> None:
    action = (CI / "action.yml").read_text()
    declared = set(re.findall(r"^  (\w+):", action.partition("inputs:")[2].partition("\noutputs:")[0], re.MULTILINE))
    assert set(re.findall(r"inputs\.(\w+)", action)) == declared
    example = (CI / "github-workflow.example.yml").read_text().partition("ci@COMMIT")[2]
    assert set(re.findall(r"^          (\w+):", example, re.MULTILINE)) <= declared


def test_the_script_passes_options_that_the_command_has() -> None:
    script = CI / "compare"
    (loop,) = re.findall(r"^for option in (.*); do$", script.read_text(), re.MULTILINE)
    command = main.get_command(None, "ci")  # type: ignore[arg-type]
    assert command is not None
    options = {option for parameter in command.params for option in parameter.opts}
    assert {f"--{name}" for name in loop.split()} <= options
    if shutil.which("shellcheck"):
        done = subprocess.run(["shellcheck", str(script)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
