"""`./bentpipe check` with real images: a good image, bad images, and a build without an image. Needs the images of the
demo."""

import hashlib
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as Xml

import docker
import pytest

from runner.check.candidate import MOST
from runner.engine.engine import connect
from runner.paths import ROOT

pytestmark = pytest.mark.docker

# Bad images: the lines that are added to the Dockerfile of quinn's image.
BAD = {
    "no-setup": "RUN mv /setup.sh /prepare.sh && sed -i s,/setup.sh,/prepare.sh, /entrypoint.sh\n",
    "nobody": "USER nobody\n",
    "no-entry": "ENTRYPOINT []\nCMD []\n",
    "loose": 'RUN sed -i "s/exit 127/exit 0/" /entrypoint.sh\n',
}
PREFIX = "bentpipe-test/check-"


@pytest.fixture(scope="module")
def client() -> docker.DockerClient:
    return connect()


@pytest.fixture(scope="module", autouse=True)
def _images(client: docker.DockerClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("images")
    for name, lines in BAD.items():
        (folder / name).mkdir()
        (folder / name / "Dockerfile").write_text(f"FROM bentpipe/quinn\n{lines}")
        client.images.build(path=str(folder / name), tag=PREFIX + name, rm=True)
    _import_foreign(client, PREFIX + "foreign")
    yield
    for name in (*BAD, "foreign"):
        client.images.remove(PREFIX + name, force=True)


def _import_foreign(client: docker.DockerClient, tag: str) -> None:
    """Import an image for another architecture: an archive like those of `docker save`, with an empty layer."""
    layer = io.BytesIO()
    tarfile.open(fileobj=layer, mode="w").close()
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    config = {
        "architecture": "riscv64",
        "os": "linux",
        "config": {"Entrypoint": ["/run"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [],
    }
    manifest = [{"Config": "config.json", "RepoTags": [f"{tag}:latest"], "Layers": ["layer.tar"]}]
    files = {
        "config.json": json.dumps(config).encode(),
        "manifest.json": json.dumps(manifest).encode(),
        "layer.tar": layer.getvalue(),
    }
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    client.images.load(archive.getvalue())


def check(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "runner", "check", *arguments],
        cwd=cwd,
        env={
            "PYTHONPATH": str(ROOT),
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "COLUMNS": "200",
            "HOME": str(Path.home()),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_good_image_passes_and_gets_its_entry(tmp_path: Path) -> None:
    cases = "handshake,v2,amplificationlimit"
    done = check("bentpipe/quinn", "--name", "mine", "--case", cases, "--run", str(tmp_path / "run"))
    assert done.returncode == 0, done.stdout + done.stderr
    entry = json.loads((tmp_path / "run" / "entry.json").read_text())["mine"]
    assert entry["roles"] == ["client", "server"]
    # quinn does not support version 2. amplificationlimit judges only servers, so it does not run for a client.
    assert entry["cases"] == {"client": ["handshake"], "server": ["handshake", "transfer"]}
    suites = Xml.parse(tmp_path / "run" / "junit.xml").getroot()
    assert {suite.get("name"): suite.get("skipped") for suite in suites}["client"] == "1"


@pytest.mark.parametrize(
    ("image", "code", "word"),
    [
        ("no-setup", "no-setup-script", "/setup.sh"),
        ("nobody", "not-root", "USER"),
        ("loose", "ignores-testcase", "127"),
        ("no-entry", "no-entry-point", "ENTRYPOINT"),
        ("foreign", "wrong-platform", "--platform linux/"),
    ],
)
def test_a_bad_image_gets_its_problem_and_the_fix(tmp_path: Path, image: str, code: str, word: str) -> None:
    done = check(PREFIX + image, "--case", "handshake", "--peer", "quinn", "--run", str(tmp_path / "run"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert code in done.stdout
    assert word in done.stdout
    assert code in (tmp_path / "run" / "report.md").read_text()
    assert "Traceback" not in done.stderr


def take_programs(client: docker.DockerClient, folder: Path) -> None:
    """Copy `client` and `server` of quic-go, which need no library."""
    made = client.containers.create("bentpipe/quic-go")
    try:
        for program in ("client", "server"):
            blocks, _ = made.get_archive(f"/usr/local/bin/quic-go/{program}")
            with tarfile.open(fileobj=io.BytesIO(b"".join(blocks))) as tar:
                tar.extractall(folder, filter="data")
    finally:
        made.remove()


# A client that gives up every transfer until the run's folder, which is beside the client, has this many results. So
# some iterations fail and the others succeed, in every run of the test.
FLAKY = """#!/bin/bash
if [ "$TESTCASE" = transfer ] && [ "$(ls run/*/transferloss/*/result.json 2>/dev/null | wc -l)" -lt {} ]
then exit 1; fi
exec ./client $REQUESTS
"""


@pytest.mark.parametrize(
    ("failures", "code", "rate"),
    [(1, 0, "4/5 succeeded, a rate of 28% to 99% (95 %)"), (99, 1, "0/5 succeeded, a rate of 0% to 52% (95 %)")],
)
def test_a_client_that_fails_sometimes_is_distinguished_from_one_that_always_fails(
    client: docker.DockerClient, tmp_path: Path, failures: int, code: int, rate: str
) -> None:
    take_programs(client, tmp_path)
    flaky = tmp_path / "flaky"
    flaky.write_text(FLAKY.format(failures))
    flaky.chmod(0o755)
    arguments = ("--client", "./flaky", "--case", "transferloss", "--peer", "quinn")
    done = check(*arguments, "--run", str(tmp_path / "run"), cwd=tmp_path)
    assert done.returncode == code, done.stdout + done.stderr
    assert f"transferloss as client with quinn: {rate}" in done.stdout
    assert rate in (tmp_path / "run" / "report.md").read_text()
    truths = [
        json.loads(path.read_text()) for path in (tmp_path / "run").glob("quinn_local/transferloss/*/result.json")
    ]
    assert len({truth["truth"]["seed"] for truth in truths}) == len(truths) == MOST, "each with a seed of its own"
    suites = Xml.parse(tmp_path / "run" / "junit.xml").getroot()
    assert {suite.get("name"): suite.get("failures") for suite in suites}["client"] == str(code)


def test_a_build_of_this_host_needs_no_image(client: docker.DockerClient, tmp_path: Path) -> None:
    take_programs(client, tmp_path)
    commands = ("--client", "./client $REQUESTS", "--server", "./server")
    done = check(*commands, "--case", "handshake", "--peer", "quinn", "--run", str(tmp_path / "run"), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    entry = json.loads((tmp_path / "run" / "entry.json").read_text())
    assert entry["local"]["cases"] == {"client": ["handshake"], "server": ["handshake"]}
    failing = check("--client", "false", "--case", "handshake", "--peer", "quinn", "--run", str(tmp_path / "failing"))
    assert failing.returncode == 1
    assert "client-exit" in failing.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "either IMAGE, or"),
        (("bentpipe/quinn", "--client", "x"), "either IMAGE, or"),
        (("bentpipe-test/nowhere",), "has no image 'bentpipe-test/nowhere'"),
        (("bentpipe/quinn", "--peer", "nobody"), "no stack 'nobody'"),
        (("bentpipe/quinn", "--name", "a_b"), "--name a_b"),
        (("bentpipe/quinn", "--case", "nothing"), "no case 'nothing'"),
    ],
)
def test_bad_input_is_one_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    done = check(*arguments)
    assert done.returncode == 2
    assert sentence in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
