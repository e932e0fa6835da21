"""Archives as an engine sends them, with members that no honest endpoint has."""

import hashlib
import io
import itertools
import tarfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import LaneError
from runner.model.result import FileRecord
from runner.store.collect import COPY_MEMBERS, Expected, compare, extract, extract_file, merge_outputs
from runner.units import MIB

PIECE = 700  # bytes of a block, so that no header is aligned with one


def archive(*members: tuple[str, bytes], kinds: dict[str, bytes] | None = None, target: str = "/etc/shadow") -> bytes:
    """A tar with one top folder. `kinds`: names that are no regular files, with their type."""
    with io.BytesIO() as file:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
            top = tarfile.TarInfo("logs/")
            top.type = tarfile.DIRTYPE
            tar.addfile(top)
            for name, content in members:
                entry = tarfile.TarInfo(f"logs/{name}")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
            for name, kind in (kinds or {}).items():
                entry = tarfile.TarInfo(f"logs/{name}")
                entry.type, entry.linkname = kind, target
                tar.addfile(entry)
        return file.getvalue()


def blocks(data: bytes, size: int = PIECE) -> Iterator[bytes]:
    """The archive as it arrives."""
    return (data[start : start + size] for start in range(0, len(data), size))


def written(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_regular_files_are_copied_with_their_folders(tmp_path: Path) -> None:
    done = extract(blocks(archive(("keys.log", b"secret"), ("qlog/deep/one.sqlog", b"x" * 5000))), tmp_path)
    assert written(tmp_path) == {"keys.log": b"secret", "qlog/deep/one.sqlog": b"x" * 5000}
    assert (done.files, done.size, done.occupied, done.skipped) == (2, 5006, 4096 + 8192, [])


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (tarfile.SYMTYPE, "symbolic link"),
        (tarfile.LNKTYPE, "hard link"),
        (tarfile.FIFOTYPE, "pipe"),
        (tarfile.CHRTYPE, "device"),
        (tarfile.BLKTYPE, "device"),
    ],
)
def test_what_is_no_regular_file_is_named_and_left(tmp_path: Path, kind: bytes, word: str) -> None:
    done = extract(blocks(archive(("kept", b"1"), kinds={"keys.log": kind})), tmp_path)
    assert written(tmp_path) == {"kept": b"1"}
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert done.skipped == [f"keys.log ({word})"]


@pytest.mark.parametrize(
    "name", ["../outside", "a/../../outside", "/../../outside", "line\nbreak", "\x1b[2J", "a/" * 9 + "b"]
)
def test_names_that_lead_out_or_deceive_are_not_taken(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    done = extract(blocks(archive((name, b"evil"), ("good", b"1"))), folder)
    assert written(tmp_path) == {"inside/good": b"1"}
    assert len(done.skipped) == 1
    assert done.skipped[0].isprintable()


def test_a_link_cannot_be_used_as_a_folder(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    extract(blocks(archive(kinds={"door": tarfile.SYMTYPE}, target=str(outside))), inside)
    extract(blocks(archive(("door/evil", b"evil"))), inside)
    assert written(outside) == {}
    assert written(inside) == {"door/evil": b"evil"}


def test_a_file_is_neither_replaced_nor_used_as_a_folder(tmp_path: Path) -> None:
    done = extract(
        blocks(archive(("one", b"first"), ("one", b"second"), ("one/below", b"third"), ("output.log", b"forged"))),
        tmp_path,
        reserved=frozenset(("output.log",)),
    )
    assert written(tmp_path) == {"one": b"first"}
    assert len(done.skipped) == 3


def test_the_budget_ends_the_reading(tmp_path: Path) -> None:
    taken = 0

    def endless() -> Iterator[bytes]:
        nonlocal taken
        header = tarfile.TarInfo("logs/sparse")
        header.size = 50 << 30
        yield header.tobuf()
        while True:
            taken += 1 << 20
            yield bytes(1 << 20)

    done = extract(endless(), tmp_path, budget=10_000)
    assert taken <= 2 << 20
    assert written(tmp_path) == {}
    assert done.skipped == [f"sparse ({50 << 30} bytes are over the budget)"]


def test_a_million_files_are_cut_short(tmp_path: Path) -> None:
    data = archive(*((f"file{number}", b"") for number in range(60)))
    done = extract(blocks(data), tmp_path, members=50)
    assert len(written(tmp_path)) == 50
    assert done.skipped == ["file50 (more than 50 files)"]
    assert COPY_MEMBERS > 1000


def test_the_list_of_what_was_left_is_short(tmp_path: Path) -> None:
    data = archive(kinds={f"link{number}": tarfile.SYMTYPE for number in range(200)})
    done = extract(blocks(data), tmp_path)
    assert len(done.skipped) == 51
    assert done.skipped[-1] == "and more"


def test_an_archive_that_breaks_off_keeps_what_came_before(tmp_path: Path) -> None:
    data = archive(("one", b"1" * 600), ("two", b"2" * 6000))
    done = extract(blocks(data[:3000]), tmp_path)
    assert written(tmp_path)["one"] == b"1" * 600
    assert "the archive is broken" in done.skipped[-1]


def expected(**files: bytes) -> dict[str, Expected]:
    return {
        name: Expected(size=len(content), digest=hashlib.sha256(content).digest()) for name, content in files.items()
    }


def test_downloads_are_compared_by_content() -> None:
    files = expected(same=b"abc", wrong=b"abc", short=b"abcd", absent=b"x", linked=b"y", empty=b"")
    data = archive(
        ("same", b"abc"), ("wrong", b"abd"), ("short", b"abc"), ("empty", b""), kinds={"linked": tarfile.SYMTYPE}
    )
    received = compare(blocks(data), files, budget=1 << 20)
    assert {file.name: (file.received, file.equal) for file in received.files} == {
        "same": (3, True),
        "wrong": (3, False),
        "short": (3, False),
        "absent": (None, False),
        "linked": (None, False),
        "empty": (0, True),
    }
    assert received.extra == ("linked (symbolic link)",)
    assert received.files[0] == FileRecord(name="same", size=3, received=3, equal=True)


def test_files_that_nobody_asked_for_are_named() -> None:
    data = archive(("same", b"abc"), ("more", b"1"), ("folder/deep", b"2"), ("bad\nname", b"3"))
    received = compare(blocks(data), expected(same=b"abc"), budget=1 << 20)
    assert received.files[0].equal
    assert received.extra == ("more", "folder/deep", "'bad\\nname'")


def test_a_file_of_the_right_name_elsewhere_is_not_the_file() -> None:
    received = compare(blocks(archive(("folder/same", b"abc"))), expected(same=b"abc"), budget=1 << 20)
    assert received.files[0].received is None


def test_a_broken_archive_of_downloads_is_the_harness_fault() -> None:
    with pytest.raises(LaneError) as caught:
        compare(blocks(archive(("same", b"abc" * 1000))[:2000]), expected(same=b"abc" * 1000), budget=1 << 20)
    assert caught.value.code == "archive-broken"


@given(
    st.dictionaries(st.text("abc/.", min_size=1, max_size=9), st.binary(max_size=3000), max_size=6),
    st.integers(1, 4000),
)
def test_any_names_and_blocks_stay_inside(
    tmp_path_factory: pytest.TempPathFactory, members: dict[str, bytes], size: int
) -> None:
    outer = tmp_path_factory.mktemp("any")
    inner = outer / "inside"
    inner.mkdir()
    done = extract(blocks(archive(*members.items()), size), inner)
    assert {path.name for path in outer.iterdir()} == {"inside"}
    assert len(written(inner)) == done.files
    assert sum(map(len, written(inner).values())) == done.size


def test_merged_outputs_keep_the_last_lines() -> None:
    merged = merge_outputs([("client", "\n".join(f"line {number}" for number in range(500))), ("server", "")])
    assert merged.startswith("== client ==\nline 400\n")
    assert merged.endswith("line 499\n== server ==\n")


def _peak(work: Callable[[], object]) -> int:
    """Bytes that Python's objects took at most while `work` ran."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _steady_peak(work: Callable[[], object]) -> int:
    """The lower peak of two runs: a table of the interpreter's own (of interned names, several MiB in a process that
    has run many tests) may grow in one of them."""
    return min(_peak(work), _peak(work))


def _header(size: int, kind: bytes) -> bytes:
    entry = tarfile.TarInfo("logs/header")
    entry.type, entry.size = kind, size
    return entry.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
def test_a_header_of_any_size_is_not_read(tmp_path: Path, kind: bytes) -> None:
    sent = 0

    def hostile() -> Iterator[bytes]:
        nonlocal sent
        yield archive(("keys.log", b"secret"))[:-10240]
        yield _header(64 * MIB, kind)
        for _ in range(64):
            sent += MIB
            yield bytes(MIB)

    peak = _peak(lambda: extract(hostile(), tmp_path))
    assert peak < 8 * MIB
    assert sent < 8 * MIB, "nobody reads on"


def test_headers_before_headers_end_without_an_exception(tmp_path: Path) -> None:
    nested = _header(0, tarfile.XHDTYPE) * 5000
    done = extract(blocks(nested, 512), tmp_path)
    assert done.files == 0
    with pytest.raises(LaneError, match="broken"):
        compare(blocks(nested, 512), {}, budget=10)


def test_deep_folders_and_many_members_cost_no_memory(tmp_path: Path) -> None:
    def deep() -> Iterator[bytes]:
        for depth in range(1, 2000):
            entry = tarfile.TarInfo("downloads/" + "d/" * depth)
            entry.type = tarfile.DIRTYPE
            yield entry.tobuf(tarfile.PAX_FORMAT)

    def endless() -> Iterator[bytes]:
        for number in itertools.count():
            yield tarfile.TarInfo(f"downloads/{number}").tobuf(tarfile.PAX_FORMAT)

    assert _steady_peak(lambda: extract(deep(), tmp_path)) < 4 * MIB
    assert _steady_peak(lambda: compare(endless(), {}, budget=10**9)) < 8 * MIB


def test_a_name_in_a_record_is_short(tmp_path: Path) -> None:
    done = extract(blocks(archive(kinds={"/".join(["n" * 250] * 7): tarfile.FIFOTYPE})), tmp_path)
    assert len(done.skipped) == 1
    assert len(done.skipped[0]) < 300


def test_one_file_is_taken_from_an_archive_without_end(tmp_path: Path) -> None:
    def endless() -> Iterator[bytes]:
        for number in itertools.count():
            entry = tarfile.TarInfo(f"folder{number}")
            entry.type = tarfile.DIRTYPE
            yield entry.tobuf()

    with pytest.raises(LaneError, match="contains no file"):
        extract_file(endless(), tmp_path / "capture.pcap", budget=10)
