"""Images on their way to another host: only what it lacks crosses, whole, counted on the wire."""

import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import docker
import pytest

from lab.testbed.hosts import Host
from runner.errors import BudgetError, SetupError
from runner.images import pulling as archives
from runner.images.pulling import WantedImage, bring
from runner.model.result import Outcome
from runner.places.links.hosts import RemoteEngine
from runner.places.links.real_links import Ledger, LinkHost, expected_volume
from runner.places.supervised import TOOLS
from runner.plan.catalog import Catalog
from runner.tests.links.jobs import STACK, link_to, working
from runner.tests.links.test_real_link import images  # noqa: F401 - a fixture
from runner.units import MIB

pytestmark = pytest.mark.docker

NAMES = BASE, TOP, LABELLED = tuple(f"bentpipe-test/shipped-{name}" for name in ("base", "top", "labelled"))
_FILE = "head -c {} /dev/urandom > /{}"  # makes a file of random bytes, which can't be compressed
HEADERS = 1.1  # bytes of frames per byte of an archive, at most: SSH, TCP, IP, Ethernet, ACKs


@pytest.fixture(scope="module")
def layered() -> Iterator[docker.DockerClient]:
    """This host's engine, with an image on the tools, and two on that; two layers of the first of these are empty."""
    local = docker.from_env()
    base = f"FROM {TOOLS}\nRUN {_FILE.format(12 * MIB, 'base')}\n"
    top = f"FROM {BASE}\nRUN true\nRUN true\nRUN {_FILE.format(MIB, 'top')}\n"
    for name, text in zip(NAMES, (base, top, f"FROM {BASE}\nLABEL built=here\n"), strict=True):
        _build(local, name, text)
    yield local
    for name in reversed(NAMES):
        local.images.remove(name, force=True)
    local.close()


def _build(client: docker.DockerClient, name: str, dockerfile: str) -> None:
    client.images.build(fileobj=io.BytesIO(dockerfile.encode()), tag=name, rm=True, forcerm=True)


@pytest.fixture
def engine(remote_host: Host) -> Iterator[RemoteEngine]:
    """The host's engine over SSH; images that are sent to it are removed afterwards."""
    opened = RemoteEngine.open(remote_host.remote(), {})
    yield opened
    opened.close()
    for name in reversed(NAMES):
        if remote_host.engine().images.list(name=name):
            remote_host.engine().images.remove(name, force=True)


def _crossed(host: Host) -> int:
    """Bytes of the frames that this host has sent to the other one, and got from it."""
    folder = Path(f"/sys/class/net/{host.name}m/statistics")
    return sum(int((folder / f"{way}_bytes").read_text()) for way in ("tx", "rx"))


def _digests(client: docker.DockerClient, image: str) -> bytes:
    command = ["sha256sum", "/base", "/top", "/usr/bin/tcpdump"]
    return bytes(client.containers.run(image, command, network_mode="none", remove=True))


def _lacking(engine: RemoteEngine, local: docker.DockerClient, *names: str) -> list[str]:
    wanted = [WantedImage.of(local, name) for name in names]
    return [image.name for image in LinkHost(engine).ask(archives.lacking, wanted)]


def test_a_layer_that_the_host_has_does_not_cross_again(
    remote_host: Host, engine: RemoteEngine, layered: docker.DockerClient
) -> None:
    messages: list[tuple[str, int, int]] = []
    crossed: dict[int, int] = {}  # by size of the archive

    @contextmanager
    def sending(size: int) -> Iterator[None]:
        before = _crossed(remote_host)
        yield
        crossed[size] = _crossed(remote_host) - before

    assert _lacking(engine, layered, TOOLS, BASE, TOP) == [BASE, TOP]
    wanted = [WantedImage.of(layered, name) for name in (TOOLS, BASE, TOP, BASE)]
    host, said = LinkHost(engine, lambda *progress: messages.append(progress)), list[str]()
    bring(layered, wanted, host, say=said.append, sending=sending)
    for size, (sent, on_the_wire) in zip((12 * MIB, MIB), crossed.items(), strict=True):
        assert size < sent < 1.01 * size + 20_000
        assert sent < on_the_wire < HEADERS * sent + 50_000
    ends = [message for message in messages if message[1] == message[2]]
    assert ends == [(name, size, size) for name, size in zip((BASE, TOP), crossed, strict=True)]
    assert said[0] == f"{BASE} is missing there, 1 of 2"
    assert _lacking(engine, layered, BASE, TOP) == []
    there = remote_host.engine()
    assert there.images.get(TOP).id == layered.images.get(TOP).id
    assert _digests(there, TOP) == _digests(layered, TOP)
    layers = wanted[2].layers  # as after a killed run: a second call has nothing to send
    assert archives.present(layers, LinkHost(engine).ask(archives.chains)) == frozenset(layers)


def test_what_ssh_lost_on_the_way_is_sent_again(
    remote_host: Host, engine: RemoteEngine, layered: docker.DockerClient
) -> None:
    drops = [6 * MIB]

    def report(_: str, sent: int, __: int) -> None:
        if drops and sent > drops[0]:
            drops.clear()
            remote_host.restart_ssh(away=1.0)

    bring(layered, [WantedImage.of(layered, TOP)], LinkHost(engine, report), say=lambda _: None)
    assert engine.tunnel.connection.connects == 2
    assert _digests(remote_host.engine(), TOP) == _digests(layered, TOP)


@pytest.mark.parametrize(("change", "missing"), [("LABEL built=there", []), ("CMD another", [LABELLED])])
def test_an_image_of_another_id_is_the_same_by_files_and_start(
    remote_host: Host, engine: RemoteEngine, layered: docker.DockerClient, change: str, missing: list[str]
) -> None:
    """An engine with containerd's image store has the manifest's digest for the id of an image."""
    remote_host.load(BASE)
    _build(remote_host.engine(), LABELLED, f"FROM {BASE}\n{change}\n")
    assert remote_host.engine().images.get(LABELLED).id != layered.images.get(LABELLED).id
    assert _lacking(engine, layered, LABELLED) == missing


def test_an_image_for_another_processor_is_told(engine: RemoteEngine, layered: docker.DockerClient) -> None:
    name = "bentpipe-test/foreign"
    config = {"architecture": "s390x", "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": []}}
    manifest = [{"Config": "config.json", "RepoTags": [f"{name}:latest"], "Layers": []}]
    with io.BytesIO() as file:
        with tarfile.open(fileobj=file, mode="w") as tar:
            for member, content in (("config.json", config), ("manifest.json", manifest)):
                entry, text = tarfile.TarInfo(member), json.dumps(content).encode()
                entry.size = len(text)
                tar.addfile(entry, io.BytesIO(text))
        layered.images.load(file.getvalue())
    try:
        with pytest.raises(SetupError, match=rf"{name} is made for s390x, and the other host is \w+: use a host"):
            _lacking(engine, layered, name)
    finally:
        layered.images.remove(name)


def test_an_image_that_the_budget_does_not_hold_is_not_sent(
    remote_host: Host, catalog: Catalog, tmp_path: Path
) -> None:
    remote_host.engine().images.remove(f"bentpipe/{STACK}", force=True)
    before = _crossed(remote_host)
    poor = replace(link_to(remote_host), ssh_over_link=True, budget_day=500_000)
    with (
        pytest.raises(BudgetError, match=rf"an image that {remote_host.name} lacks takes about"),
        working(catalog, tmp_path, poor, cases=("transfer",)),
    ):
        pass
    assert _crossed(remote_host) - before < 200_000
    remote_host.load(f"bentpipe/{STACK}")


def test_ssh_over_the_link_is_charged_as_it_crosses(remote_host: Host, catalog: Catalog, tmp_path: Path) -> None:
    link = replace(link_to(remote_host), ssh_over_link=True)
    before = _crossed(remote_host)
    with working(catalog, tmp_path, link, cases=("transfer",)) as work:
        ledger = Ledger(tmp_path / "volume.json")
        today = work.links._now().date()
        opened = ledger.spent(link.name, today=today)[0]
        result, evidence = work.do(work.run.order[0])
        assert result.outcome is Outcome.SUCCEEDED, result.findings
        charged = ledger.spent(link.name, today=today)[0]
        crossed = _crossed(remote_host) - before
    assert evidence.real_link is not None
    assert evidence.real_link.volume == charged - opened
    assert 0.97 * crossed < charged < 1.1 * crossed, (crossed, charged)
    expected = expected_volume(link, work.run.cases["transfer@roof"])
    assert 0.9 < expected / (charged - opened) < 1.3, (expected, charged - opened)
