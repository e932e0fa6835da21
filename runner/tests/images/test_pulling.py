"""Published images, fetched from a real registry on loopback, and the sentences without a registry."""

import hashlib
import io
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest
from rich.console import Console

from runner.engine import engine
from runner.errors import SetupError
from runner.images import images, pulling, setup
from runner.images.images import Event, ImageState
from runner.model.stack import Implementation
from runner.paths import ROOT
from runner.plan import jobs
from runner.plan.catalog import load_catalog
from runner.plan.choice import Selection
from runner.store.runs import RunFolder


def published(name: str, image: str, *, withdrawn: bool = False, note: str = "") -> Implementation:
    url = "https://example.org"
    return Implementation(name=name, image=image, url=url, version="", withdrawn=withdrawn, note=note)


@pytest.mark.parametrize(
    ("tag", "host"),
    [
        ("ntap/quant:interop", "docker.io"),
        ("debian", "docker.io"),
        ("ghcr.io/mozilla/neqo-qns:latest", "ghcr.io"),
        ("127.0.0.1:5000/x", "127.0.0.1:5000"),
        ("localhost/x/y", "localhost"),
    ],
)
def test_registry_of_a_tag(tag: str, host: str) -> None:
    assert pulling.registry(tag) == host


def test_absent_without_an_engine_are_all_published_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    built = Implementation(
        name="b", image="bentpipe/b", build="implementations/b", url="https://example.org", version=""
    )
    gone = published("gone", "x/gone", withdrawn=True, note="Left the list.")
    assert images.absent([built, published("p", "x/p:1"), gone]) == {
        "p": "The image of p (x/p:1) is not pulled: run `./bentpipe build --pull p`.",
        "gone": "The image of gone (x/gone) is not pulled: run `./bentpipe build --pull gone`. Left the list.",
    }


def test_run_records_under_which_digest_a_registry_has_an_image(tmp_path: Path) -> None:
    catalog = load_catalog()
    selection = Selection.of(catalog, servers=("mvfst", "quinn"), clients=("quinn",), cases=("handshake",))
    run = jobs.new_run(tmp_path / "run", selection, seed=1)
    ids, digests = {"mvfst": "sha256:1", "quinn": "sha256:2"}, {"mvfst": "ghcr.io/x@sha256:3"}
    run = setup.Ready(ids=ids, digests=digests).recorded_in(run)
    RunFolder.create(tmp_path / "run", run)
    stored = RunFolder.open(tmp_path / "run").run.implementations
    assert {name: (record.image_id, record.image_digest) for name, record in stored.items()} == {
        "mvfst": ("sha256:1", "ghcr.io/x@sha256:3"),
        "quinn": ("sha256:2", ""),
    }


@pytest.fixture(scope="module")
def client() -> docker.DockerClient:
    return engine.connect()


@pytest.mark.docker
def test_registry_that_is_away_is_one_sentence_for_all_its_images(client: docker.DockerClient) -> None:
    away = [published(name, f"127.0.0.1:1/{name}:latest") for name in ("a", "b", "c")]
    events: list[Event] = []
    with pytest.raises(SetupError) as caught:
        pulling.pull(client, away, report=events.append)
    sentence = str(caught.value)
    begin = (
        "The registry 127.0.0.1:1 can't be reached (dial tcp 127.0.0.1:1: connect: connection refused); not pulled: "
    )
    assert sentence.startswith(begin)
    assert sorted(sentence.removeprefix(begin).rstrip(".").split(", ")) == ["a", "b", "c"]
    assert len(sentence.splitlines()) == 1
    assert 1 <= [event.state for event in events].count(ImageState.FAILED) <= 2  # the other images were not tried


@pytest.mark.docker
def test_mute_registry_is_given_up(client: docker.DockerClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        host = f"127.0.0.1:{mute.getsockname()[1]}"
        begin = time.monotonic()
        with pytest.raises(SetupError, match=rf"The registry {host} can't be reached \(it sent nothing for 1 s\)"):
            pulling.pull(client, [published("a", f"{host}/a")], report=lambda _: None, silence=1.0)
        assert time.monotonic() - begin < 30


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`host:port` of a registry on loopback, from the distribution's package, which is unpacked and not installed."""
    folder = tmp_path_factory.mktemp("registry")
    program = shutil.which("docker-registry")
    if program is None:
        # apt-get drops its rights to download, and a folder of pytest is closed to others
        done = subprocess.run(
            ["apt-get", "-o", "APT::Sandbox::User=root", "download", "docker-registry"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        packages = list(folder.glob("*.deb"))
        if not packages:
            pytest.skip(f"the package docker-registry can't be had: {done.stderr.strip()}")
        subprocess.run(["dpkg", "-x", packages[0], folder], check=True)
        program = str(folder / "usr/bin/docker-registry")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    settings = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": address},
    }
    (folder / "config.yml").write_text(json.dumps(settings))  # every JSON document is also a YAML document
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen([program, "serve", folder / "config.yml"], stdout=log, stderr=log) as process,
    ):
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", int(address.split(":")[1])), timeout=1).close()
                break
            except OSError:
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.1)
        yield address
        process.terminate()


Publish = Callable[[str], str]


@pytest.fixture
def publish(client: docker.DockerClient, registry: str) -> Iterator[Publish]:
    """A function that pushes a new image of 3 MB for `machine` and removes it from the engine. Returns its tag."""
    made = []

    def push(machine: str) -> str:
        tag = f"{registry}/bentpipe-test-{random.getrandbits(32):08x}:1"
        made.append(tag)
        client.images.load(_archive(tag, machine))
        text = list(client.api.push(tag, stream=True, decode=True))
        assert not [event for event in text if "error" in event], text
        client.images.remove(tag)
        return tag

    yield push
    for tag in made:
        if images.held(client, tag) is not None:
            client.images.remove(tag)


def _archive(tag: str, machine: str) -> bytes:
    """An image of one layer, as `docker save` writes it (Image Specification 1.2)."""
    layer = _tar({"content": os.urandom(3_000_000)})
    config = {
        "architecture": machine,
        "os": "linux",
        "config": {"Cmd": ["/content"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [tag], "Layers": ["layer.tar"]}]
    return _tar(
        {
            "config.json": json.dumps(config).encode(),
            "manifest.json": json.dumps(manifest).encode(),
            "layer.tar": layer,
        }
    )


def _tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


@pytest.mark.docker
@pytest.mark.slow
def test_pulls_with_progress_and_records_the_digest(client: docker.DockerClient, publish: Publish) -> None:
    tag = publish("amd64")
    stack = published("demo", tag)
    assert list(images.absent([stack])) == ["demo"]
    events: list[Event] = []
    pulling.pull(client, [stack], report=events.append)
    assert events[0].state is ImageState.WORKING
    assert [event.state for event in events][-2:] == [ImageState.WORKING, ImageState.PULLED]
    assert any(event.text.endswith("of 2.86 MiB") for event in events)
    assert (events[-2].step, events[-2].steps) == (1, 1)
    assert images.absent([stack]) == {}
    outcome = images.require_published(client, [stack])["demo"]
    assert outcome.size >= 3_000_000
    assert outcome.digest.startswith(f"{tag.removesuffix(':1')}@sha256:")
    ready = setup.prepare([stack], assume_yes=True, extra_cas=None, console=Console(file=io.StringIO()))
    assert ready == setup.Ready(ids={"demo": outcome.id}, digests={"demo": outcome.digest})

    events.clear()
    pulling.pull(client, [stack], report=events.append)
    assert [event.state for event in events][-1:] == [ImageState.CURRENT]

    client.images.remove(tag)
    pinned = published("pinned", outcome.digest)
    pulling.pull(client, [pinned], report=lambda _: None)
    assert images.require_published(client, [pinned])["pinned"].id == outcome.id
    client.images.remove(outcome.digest)


@pytest.mark.docker
@pytest.mark.slow
def test_what_can_be_had_is_kept_and_the_rest_told(client: docker.DockerClient, publish: Publish) -> None:
    good, foreign = publish("amd64"), publish("arm64")
    unknown = good.removesuffix(":1") + ":2"
    stacks = [published(*pair) for pair in (("f", foreign), ("u", unknown), ("away", "127.0.0.1:1/x"), ("g", good))]
    with pytest.raises(SetupError) as caught:
        pulling.pull(client, stacks, report=lambda _: None, parallel=1)
    away, machine, manifest = str(caught.value).splitlines()
    assert away.endswith("; not pulled: away.")
    text = f"The image {foreign} is built for linux/arm64 and this engine runs linux/amd64: ask the image's project"
    assert machine == f"f: {text} for an image for linux/amd64."
    assert manifest.startswith(f"u: the image {unknown} can't be pulled: manifest for {unknown} not found")
    assert list(images.absent(stacks)) == ["f", "u", "away"]


@pytest.mark.docker
@pytest.mark.slow
def test_image_for_another_machine_is_refused_before_a_run(client: docker.DockerClient, publish: Publish) -> None:
    tag = publish("arm64")
    client.images.load(_archive(tag, "arm64"))
    with pytest.raises(SetupError, match="is built for linux/arm64 and this engine runs linux/amd64"):
        images.require_published(client, [published("f", tag)])


def _bentpipe(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "runner", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


def _catalogue(path: Path, **tags: str) -> Path:
    entries = {name: {"image": tag, "url": "https://example.org", "roles": ["server"]} for name, tag in tags.items()}
    path.write_text(json.dumps({"schema": 1, "implementations": entries}))
    return path


def _missing(listed: str) -> set[str]:
    """The stacks of the test's own catalogue that `list` calls not pulled; it lists the public images as well."""
    return {words[0] for line in listed.splitlines() if "not pulled" in line and (words := line.split())} & {
        "one",
        "two",
        "away",
    }


@pytest.mark.docker
@pytest.mark.slow
def test_build_pull_at_the_command_line(tmp_path: Path, publish: Publish) -> None:
    path = _catalogue(tmp_path / "i.json", one=publish("amd64"), two=publish("amd64"), away="127.0.0.1:1/x")
    before = _bentpipe("--implementations", path, "list")
    assert _missing(before.stdout) == {"one", "two", "away"}
    done = _bentpipe("--implementations", path, "build", "--pull")
    assert done.returncode == 3
    assert done.stderr.count(" pulled, ") == 2
    assert "; not pulled: away." in done.stderr
    assert done.stdout.count("2.86 MiB") == 2
    assert "Traceback" not in done.stderr
    after = _bentpipe("--implementations", path, "list")
    assert _missing(after.stdout) == {"away"}
    assert after.stdout.count("2.86 MiB") == 2
    again = _bentpipe("--implementations", path, "build", "--pull", "one")
    assert again.returncode == 0, again.stderr


@pytest.mark.docker
def test_run_with_an_image_that_is_not_here_says_how_to_get_it(tmp_path: Path) -> None:
    path = _catalogue(tmp_path / "i.json", never="bentpipe-test/never:1")
    done = _bentpipe("--implementations", path, "run", "--server", "never", "--run", tmp_path / "run")
    assert done.returncode == 3
    command = f"./bentpipe --implementations {path} build --pull never"
    assert " ".join(done.stderr.split()) == (
        f"bentpipe: The image of never (bentpipe-test/never:1) is not pulled: run `{command}`."
    )
    assert not (tmp_path / "run").exists()
