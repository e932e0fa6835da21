"""Archives of workers are used whole or refused, and never write outside the job's folder."""

import hashlib
import io
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from runner.errors import LaneError
from runner.model.stack import BesideFlow
from runner.places.workers.worker import OrderResult, pack, part_of, unpack
from runner.plan import jobs
from runner.plan.catalog import Catalog, load_catalog
from runner.plan.choice import choose
from runner.plan.options import MatrixOptions
from runner.tests.records import RECORDINGS, select

RECORDED = RECORDINGS / "quinn_quinn" / "lossy" / "1"


def order_result(archive: bytes) -> OrderResult:
    return OrderResult(host={}, archive=archive, size=len(archive), sha256=hashlib.sha256(archive).hexdigest())


def opened(archive: bytes, folder: Path, text: OrderResult | None = None) -> None:
    folder.mkdir()
    unpack(io.BytesIO(archive), text or order_result(archive), folder)


def test_a_folder_comes_back_as_it_was(tmp_path: Path) -> None:
    archive = pack(RECORDED)
    opened(archive, tmp_path / "there")
    files = {path.relative_to(RECORDED): path.read_bytes() for path in RECORDED.rglob("*") if path.is_file()}
    there = tmp_path / "there"
    assert {path.relative_to(there): path.read_bytes() for path in there.rglob("*") if path.is_file()} == files


def test_an_archive_that_was_cut_anywhere_is_refused(tmp_path: Path) -> None:
    archive = pack(RECORDED)
    text = order_result(archive)
    for number, end in enumerate([0, 1, len(archive) // 2, len(archive) - 1]):
        with pytest.raises(LaneError, match="archive of a worker"):
            opened(archive[:end], tmp_path / f"with-{number}", text)
        with pytest.raises(LaneError, match="archive of a worker"):
            opened(archive[:end], tmp_path / f"without-{number}")


def crafted(change: Callable[[tarfile.TarFile], None]) -> bytes:
    """An archive of the recorded folder with the additions of `change`."""
    buffer = pa.BufferOutputStream()
    with pa.CompressedOutputStream(buffer, "zstd") as out, tarfile.open(fileobj=out, mode="w|") as archive:
        archive.add(RECORDED, "job")
        change(archive)
    content: bytes = buffer.getvalue().to_pybytes()
    return content


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> Callable[[tarfile.TarFile], None]:
    def add(archive: tarfile.TarFile) -> None:
        member = tarfile.TarInfo(name)
        member.type, member.linkname, member.size = kind, link, size
        archive.addfile(member, io.BytesIO(bytes(size)))

    return add


@pytest.mark.parametrize(
    "change",
    [
        entry("job/../../escaped"),
        entry("job/link", tarfile.SYMTYPE, "/etc/passwd"),
        entry("job/hard", tarfile.LNKTYPE, "/etc/passwd"),
        entry("job/pipe", tarfile.FIFOTYPE),
        entry("job/disk", tarfile.BLKTYPE),
        entry("job/evidence.json", size=3),
        entry("job/" + "a/" * 12 + "deep"),
        entry("job/new\nline"),
    ],
    ids=["parent", "symlink", "hard link", "pipe", "device", "twice", "deep", "line"],
)
def test_what_no_job_leaves_is_refused(tmp_path: Path, change: Callable[[tarfile.TarFile], None]) -> None:
    with pytest.raises(LaneError, match="archive of a worker"):
        opened(crafted(change), tmp_path / "there")
    assert list(tmp_path.iterdir()) == [tmp_path / "there"]


def test_an_archive_that_grows_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.places.workers.worker._LARGEST_FOLDER", 4 << 20)
    with pytest.raises(LaneError, match="over the budget"):
        opened(crafted(entry("job/zeros", size=8 << 20)), tmp_path / "there")


def test_a_folder_without_evidence_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "file").touch()
    with pytest.raises(LaneError, match=r"no evidence.json"):
        opened(pack(tmp_path / "empty"), tmp_path / "there")


def test_an_order_has_what_its_job_needs_and_no_more(catalog: Catalog) -> None:
    selection = select(catalog, servers=("quinn", "quic-go"), clients=("quinn", "aioquic"), cases=("handshake", "sat"))
    run = jobs.new_run(Path("many"), selection, seed=1)
    run = replace(run, clock="auto", clocks={"handshake": "virtual", "sat": "real"})
    for job in run.order:
        part = part_of(run, job)
        assert part.order == (job,)
        assert set(part.implementations) == {job.server, job.client}
        assert set(part.cases) == {job.case_link}
        assert (part.case(job), part.protocol(job), part.seed) == (run.case(job), run.protocol(job), run.seed)
        assert part.clock_of(job.case_link) == run.clock_of(job.case_link)


def test_a_job_beside_a_flow_comes_with_the_stacks_of_the_flow(tmp_path: Path) -> None:
    options = MatrixOptions(
        servers=("quic-go",), clients=("quic-go",), cases=("goodput",), besides=("tcp-cubic,quinn",)
    )
    choice = choose(options, load_catalog(), None)
    run = jobs.new_run(tmp_path, choice, seed=1)  # fmt: skip
    sent = {run.case(job).beside: set(part_of(run, job).implementations) for job in run.order}
    assert sent.keys() == {"tcp-cubic", "quinn"}
    for beside, stacks in sent.items():
        flow = set(BesideFlow.of(beside).stacks.values())
        assert stacks == {"quic-go", *flow}
