"""Files of results: a run is the same after it travelled, pieces come together, contradictions and hostile files are
refused."""

import json
import lzma
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from runner.compare.exchange import export_results, import_results
from runner.errors import UsageError
from runner.model.result import Outcome, Result
from runner.model.run import Job, Run
from runner.store.runs import RunFolder
from runner.tests.compare.test_compare import folder, same, slower
from runner.tests.program import bentpipe


def image(name: str, digest: str) -> Callable[[Run], Run]:
    def change(run: Run) -> Run:
        stack = replace(run.implementations[name], image_id=digest)
        return replace(run, implementations={**run.implementations, name: stack})

    return change


def test_a_run_that_travelled_is_the_same(tmp_path: Path) -> None:
    made, file = folder(tmp_path / "a", same), tmp_path / "a.xz"
    assert export_results(made, file) == 60
    assert file.stat().st_size < 60 * 1024
    done = import_results(file, tmp_path / "b")
    assert (done.new, done.known, done.replaced, done.without_evidence) == (60, 0, 0, 60)
    copied = RunFolder.open(tmp_path / "b")
    assert copied.results() == made.results()
    assert copied.run == replace(made.run, name="b")
    assert import_results(file, tmp_path / "b").known == 60


@pytest.mark.parametrize("outcome", [Outcome.ERROR, Outcome.SKIPPED])
def test_pieces_of_a_run_come_together_and_what_was_not_judged_is_replaced(tmp_path: Path, outcome: Outcome) -> None:
    def spoiled(job: Job, result: Result) -> Result:
        return replace(result, outcome=outcome, sample=None) if job.iteration == 1 else result

    folder(tmp_path / "a", spoiled, servers=("quinn", "kwik"))
    other = folder(tmp_path / "a2", same, servers=("kwik", "mvfst"), change=lambda run: replace(run, seed=7))
    mine = RunFolder.open(tmp_path / "a")
    other.save_run(replace(other.run, seed=mine.run.seed))
    for job, result in other.results().items():
        if job.server == "kwik" and job in mine.results() and job.iteration > 1:
            other.save_result(mine.results()[job])
        else:
            other.save_result(result)
    export_results(RunFolder.open(other.path), tmp_path / "piece.xz")
    done = import_results(tmp_path / "piece.xz", tmp_path / "a")
    assert (done.new, done.replaced, done.known) == (20, 2, 18)
    whole = RunFolder.open(tmp_path / "a")
    assert whole.run.servers == ("quinn", "kwik", "mvfst")
    assert set(whole.run.order) == set(whole.results())
    assert [job.server for job, result in whole.results().items() if result.outcome is outcome] == ["quinn"] * 2


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda run: replace(run, seed=run.seed + 1), "Seed "),
        (image("kwik", "sha256:feed"), "kwik: image "),
        (lambda run: replace(run, clock="real"), "real time after"),
    ],
)
def test_what_contradicts_is_refused_and_changes_nothing(
    tmp_path: Path, change: Callable[[Run], Run], sentence: str
) -> None:
    made = folder(tmp_path / "a", same)
    other = folder(tmp_path / "b", same)
    other.save_run(change(other.run))
    export_results(other, tmp_path / "b.xz")
    before = {path: path.read_bytes() for path in made.path.rglob("*.json")}
    with pytest.raises(UsageError, match=sentence):
        import_results(tmp_path / "b.xz", made.path)
    assert before == {path: path.read_bytes() for path in made.path.rglob("*.json")}


def test_other_numbers_of_a_job_are_refused(tmp_path: Path) -> None:
    made, other = folder(tmp_path / "a", same), folder(tmp_path / "b", slower("kwik", 0.5))
    export_results(other, tmp_path / "b.xz")
    with pytest.raises(UsageError, match=r"line \d+: the job .* has other numbers|or has other numbers"):
        import_results(tmp_path / "b.xz", made.path)


def _with_lines(path: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    lines = lzma.decompress(path.read_bytes()).splitlines(keepends=True)
    path.write_bytes(lzma.compress(b"".join(change(lines))))


def _field(number: int, name: str, value: object) -> Callable[[list[bytes]], list[bytes]]:
    def change(lines: list[bytes]) -> list[bytes]:
        document = {**json.loads(lines[number]), name: value}
        lines[number] = json.dumps(document).encode() + b"\n"
        return lines

    return change


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (_field(1, "server", "../../etc"), "line 2: the server '../../etc' can't be a name"),
        (_field(1, "iteration", -1), "line 2: "),
        (_field(1, "case", "other"), "line 2: the job .* is not in the plan"),
        (_field(1, "outcome", "great"), "line 2, field 'outcome'"),
        (_field(0, "servers", ["a/b"]), "line 1, field 'servers"),
        (_field(0, "schema", 99), "line 1 has schema 99"),
        (_field(1, "schema", 1), "line 2 has schema 1, this bentpipe reads schema 4 and later"),
        (lambda lines: [*lines, lines[-1]], "has a second result"),
        (lambda lines: [*lines, b"{}"], "ends within a line"),
        (lambda lines: [*lines, b"x\n"], "is not JSON: line 1, column 1: write a value"),
        (lambda _: [b" " * (65 << 20)], "a line of more than"),
        (lambda _: [], "line 1 is not JSON: it is empty"),
    ],
)
def test_a_hostile_file_is_refused_with_its_line_and_leaves_nothing(
    tmp_path: Path, change: Callable[[list[bytes]], list[bytes]], sentence: str
) -> None:
    file = tmp_path / "a.xz"
    export_results(folder(tmp_path / "a", same, iterations=1), file)
    _with_lines(file, change)
    with pytest.raises(UsageError, match=sentence):
        import_results(file, tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_a_cut_or_foreign_file_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    folder(tmp_path / "a", same, iterations=1)
    file = tmp_path / "a.xz"
    assert bentpipe("export", str(tmp_path / "a"), "--results", str(file)).returncode == 0
    whole = file.read_bytes()
    file.write_bytes(whole[:200] + bytes(20) + whole[220:])
    with pytest.raises(UsageError, match="is damaged: export the run again, and copy the file"):
        import_results(file, tmp_path / "b")
    with pytest.raises(UsageError, match=r"^/proc/self/mem can't be read: Input/output error\.$"):
        import_results(Path("/proc/self/mem"), tmp_path / "b")
    file.write_bytes(whole[:-40])
    cut = bentpipe("import", str(file), "--run", str(tmp_path / "b"))
    assert (cut.returncode, cut.stderr) == (2, f"bentpipe: {file} is cut off: copy it again.\n")
    for foreign in (b"PK\3\4" * 100, b"null", b""):
        file.write_bytes(foreign)
        with pytest.raises(UsageError, match="is no file of results"):
            import_results(file, tmp_path / "b")
