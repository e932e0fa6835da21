"""Paths that split TCP connections, as a lane runs them: half-close, resets, 1,000 connections, killed sides.

The tests are Go's (implementations/_carrier/source/lab); they run in the path's image, between namespaces of their own.
"""

import subprocess
from pathlib import Path

import pytest

from runner.paths import ROOT

pytestmark = [pytest.mark.docker, pytest.mark.slow]  # a tunnel counts as broken after 30 s

BUILDER = "bentpipe/carrier"
# Namespaces and mounts of its own; AppArmor's profile for containers denies mounts.
RIGHTS = ("--cap-add", "NET_ADMIN", "--cap-add", "SYS_ADMIN", "--security-opt", "apparmor=unconfined")


def _run(*arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
    container = ["docker", "run", "--rm", "--network", "none", *arguments]
    return subprocess.run(container, capture_output=True, text=True, check=False, timeout=timeout)


def _built(image: str, made_by: str) -> None:
    outcome = subprocess.run(["docker", "image", "inspect", image], capture_output=True, check=False)
    if outcome.returncode != 0:
        pytest.skip(f"{image} isn't built; ./bentpipe build {made_by} makes it")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tests' program, `lab.test`."""
    _built(BUILDER, "qpep")
    folder = tmp_path_factory.mktemp("lab")
    source = ROOT / "implementations" / "_carrier" / "source"
    # Without cgo it runs in any image.
    volumes = ("-v", f"{source}:/bentpipe/carrier:ro", "-v", f"{folder}:/built", "-e", "CGO_ENABLED=0")
    done = _run(*volumes, BUILDER, "go", "test", "-c", "-o", "/built/lab.test", "./carrier/lab", timeout=120)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.mark.parametrize(
    ("path", "image", "variables"),
    [
        ("tcp-over-quic-quinn", "bentpipe/middlebox-tcp-over-quic-quinn", ()),
        # In place of 300 s and 100 s: what the tests wait for.
        ("qpep", "bentpipe/qpep", ("-e", "IDLE_TIMEOUT=30s", "-e", "KEEP_ALIVE=10s")),
    ],
    ids=["tcp-over-quic-quinn", "qpep"],
)
def test_the_path_behaves_as_one_tcp_connection(lab: Path, path: str, image: str, variables: tuple[str, ...]) -> None:
    _built(image, path)
    program = ("-test.v", "-test.parallel=16", "-test.timeout=120s")
    entry = ("-v", f"{lab}:/built:ro", "--entrypoint", "/built/lab.test")
    done = _run(*RIGHTS, *variables, *entry, image, *program, timeout=150)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "--- PASS: TestThousandConnectionsLeaveNothing" in done.stdout
