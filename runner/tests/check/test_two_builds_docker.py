"""`./bentpipe ci` with real images that are built from two commits: it finds a fault in head, and equal builds are
equal. Needs the images of the demo."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.engine.engine import connect
from runner.paths import ROOT

pytestmark = pytest.mark.docker

# A server that never sends Retry: a script in front of quinn's.
NO_RETRY = (
    "RUN mv /run_endpoint.sh /run_good.sh && printf '#!/bin/bash\\nif [[ $ROLE == server && $TESTCASE == retry ]]; "
    "then export TESTCASE=transfer; fi\\nexec /run_good.sh\\n' > /run_endpoint.sh && chmod +x /run_endpoint.sh"
)


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    return subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A repository with the stack of quinn's image: a commit without the fault, a commit with it, and a commit that
    changes nothing."""
    folder = tmp_path_factory.mktemp("stack")
    git(folder, "init", "--quiet", "--initial-branch", "main")
    texts = {"good": "", "equal": "LABEL equal=1\n", "bad": f"{NO_RETRY}\n", "broken": "RUN false\n"}
    for name, text in texts.items():
        (folder / "Dockerfile").write_text(f"FROM bentpipe/quinn\n{text}")
        git(folder, "add", "Dockerfile")
        git(folder, "commit", "--quiet", "--message", name)
        git(folder, "tag", name)
    yield folder
    client = connect()
    for image in client.images.list("bentpipe-ci/two-builds-test"):
        for tag in image.tags:
            if tag.startswith("bentpipe-ci/two-builds-test:"):  # a build without a change gives the stack's own image
                client.images.remove(tag)


def compare(repository: Path, head: str, out: Path) -> subprocess.CompletedProcess[str]:
    """Call the script that the CI files call."""
    settings = {
        "BASE": "good",
        "HEAD": head,
        "OUT": str(out),
        "BUILD": 'docker build --force-rm --tag "$IMAGE" .',
        "NAME": "two-builds-test",
        "ROLE": "server",
        "PEER": "quic-go",
        "CASE": "handshake,retry",
        "CLOCK": "real",
        "URL": "https://example.org/1",
        "SUMMARY": str(out.parent / "summary"),
    }
    return subprocess.run(
        [str(ROOT / "ci" / "compare")],
        cwd=repository,
        env=os.environ | {f"BENTPIPE_{name}": value for name, value in settings.items()},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_a_fault_in_head_is_found_and_nothing_else(repository: Path, tmp_path: Path) -> None:
    done = compare(repository, "bad", tmp_path / "out")
    assert done.returncode == 1, done.stdout + done.stderr
    cells = json.loads((tmp_path / "out" / "changes.json").read_text())["cells"]
    assert {cell["case"]: cell["state"] for cell in cells} == {"handshake": "same", "retry": "worse"}
    assert "no-retry" in (tmp_path / "summary").read_text()
    page = "site/head/two-builds-test_quic-go/retry.html"
    assert f"https://example.org/1/{page}" in (tmp_path / "summary").read_text()
    assert (tmp_path / "out" / page).is_file()
    assert list((tmp_path / "out" / "head").glob("*/retry/*/sim/*.pcap*")), "captures of what got worse are kept"


def test_equal_builds_are_equal(repository: Path, tmp_path: Path) -> None:
    done = compare(repository, "equal", tmp_path / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing got worse" in done.stdout


@pytest.mark.parametrize(("head", "sentence"), [("broken", "--build of head"), ("nowhere", "--head nowhere")])
def test_a_commit_that_can_not_be_built_is_one_sentence(
    repository: Path, tmp_path: Path, head: str, sentence: str
) -> None:
    done = compare(repository, head, tmp_path / "out")
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_without_memory_for_guests_the_jobs_run_in_lanes(tmp_path: Path) -> None:
    """The command runs in a mount namespace whose /proc/meminfo says that 100 MiB are available. This is too little for
    a guest, and enough for lanes."""
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 8000000 kB\nMemAvailable: 102400 kB\n")
    out = tmp_path / "out"
    words = ["--base", "bentpipe/quinn", "--head", "bentpipe/quinn", "--name", "two-builds-test", "--run", str(out)]
    words += ["--role", "server", "--peer", "quic-go", "--case", "handshake", "--clock", "virtual"]
    script = f'mount --bind {meminfo} /proc/meminfo && exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", sys.executable, "-P", "-m", "runner", "ci", *words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "This host can't run virtual time: --clock virtual: " in done.stdout
    assert "The jobs run in lanes, in real time." in done.stdout
    report = json.loads((out / "changes.json").read_text())
    assert report["clock"] == "real"
    assert [cell["state"] for cell in report["cells"]] == ["same"]
