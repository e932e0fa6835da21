"""What the campaign of mutated run folders (`lab.attack`) found, a test for each, which fails without its
fix; and a short part of that campaign."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lab.attack import mutations
from lab.attack.folders import attack_folders
from lab.attack.verdicts import Tally, Verdict
from lab.run_folders import rare_run, recorded_run, vias_run
from runner.decode.capture import embed_secrets
from runner.decode.tables import decode_capture, load_tables
from runner.errors import CaptureError, UsageError
from runner.judge.execution import load_truth
from runner.model.result import Artifacts
from runner.paths import ROOT
from runner.site import UndrawableRunError, render
from runner.site.series import load_series
from runner.store.runs import RunFolder, load_evidence
from runner.tests.program import bentpipe
from runner.tests.records import RECORDINGS
from runner.tests.test_hostile_folders import ALPHA, rewrite

_SHORT = 20  # number of folders in the short campaign of the test suite


@pytest.fixture
def stranger(tmp_path: Path) -> RunFolder:
    return rare_run(tmp_path / "logs/stranger")


@pytest.mark.parametrize("text", ["\udc80", "[/red]", "[/]", "[bold", "\u202e"])
def test_any_text_of_a_result_can_be_shown(stranger: RunFolder, text: str) -> None:
    def plant(document: dict[str, Any]) -> None:
        finding = dict.fromkeys(("code", "requirement", "expected", "actual", "log_tail", "role", "section"), text)
        document |= {"findings": [finding], "violations": [finding], "limits": {text: 0.5}, "stages_s": {text: 1.0}}
        document["invariants"] = [{"name": text, "holds": False, "expected": text, "actual": text}]
        document["diagnoses"] = [
            {"code": text, "sentence": text, "start": 0.0, "end": 1.0, "share": 0.5, "section": text}
        ]

    rewrite(stranger.path / ALPHA.path / "result.json", plant)
    rewrite(stranger.path / "run.json", lambda document: document["cases"]["sat"].update(description=text))
    done = bentpipe("show", stranger.path / ALPHA.path)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


def test_show_follows_no_link_in_a_run(stranger: RunFolder, tmp_path: Path) -> None:
    other = rare_run(tmp_path / "private/other")
    shutil.rmtree(stranger.path / ALPHA.path)
    (stranger.path / ALPHA.path).symlink_to(other.path / ALPHA.path)
    done = bentpipe("show", stranger.path / ALPHA.path)
    assert done.returncode == 2
    assert "symbolic link" in done.stderr


def _moved(table: pa.Table, column: str, value: object) -> pa.Table:
    at = table.column_names.index(column)
    values = [value, *table.column(column).to_pylist()[1:]]
    return table.set_column(at, column, pa.array(values, table.schema.field(column).type))


FORGERIES: dict[str, tuple[str, Callable[[pa.Table], pa.Table]]] = {
    "a packet that is none": ("frames", lambda table: _moved(table, "packet", -1)),
    "a packet beyond the last": ("stream_frames", lambda table: _moved(table, "packet", 10**9)),
    "a connection that is none": ("packets", lambda table: _moved(table, "connection", -(2**31))),
    "no time": (
        "packets",
        lambda table: (
            _moved(table, "time_ns", None) if "time_ns" in table.column_names else _moved(table, "length", None)
        ),
    ),
    "an unknown sender": ("packets", lambda table: _moved(table, "sender", 7)),
    "an unknown type": ("packets", lambda table: _moved(table, "type", "evil")),
    "too many rows": (
        "datagrams",
        lambda table: pa.table([pa.nulls(1 + (1 << 24), each.type) for each in table.schema], table.schema),
    ),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_tables_that_no_decoder_writes_are_decoded_again(tmp_path: Path, name: str) -> None:
    table_name, change = FORGERIES[name]
    source = RECORDINGS / "quinn_quinn/handshake/1"
    from runner.decode.tables import cached_decode  # noqa: PLC0415

    artifacts = Artifacts(source)
    cached_decode(artifacts.client_capture, artifacts.key_logs, tmp_path)
    load_tables(tmp_path)
    path = tmp_path / f"{table_name}.parquet"
    table = pq.read_table(path)
    pq.write_table(change(table).replace_schema_metadata(table.schema.metadata), path)
    with pytest.raises(CaptureError, match="decode the capture again"):
        load_tables(tmp_path)
    assert cached_decode(artifacts.client_capture, artifacts.key_logs, tmp_path).packets.num_rows > 0


def test_false_secrets_of_one_endpoint_hide_no_true_ones_of_the_other(tmp_path: Path) -> None:
    """In the capture with secrets, too, which is all that a reader of a published run may have."""
    source = RECORDINGS / "quinn_quinn/transfer/1"
    capture = shutil.copyfile(source / "sim/left.pcap", tmp_path / "left.pcap")
    lines = [line.split() for line in (source / "client/keys.log").read_text().splitlines()]
    false = [f"{label} {session} {os.urandom(len(secret) // 2).hex()}" for label, session, secret in lines * 6]
    (tmp_path / "client.log").write_text("\n".join(false) + "\n")
    packed = embed_secrets(capture, [tmp_path / "client.log", source / "server/keys.log"])
    decrypted = decode_capture(packed).packets.column("decrypted").to_pylist()
    assert decrypted.count(True) == len(decrypted) > 100


def test_evidence_of_an_error_without_its_code_is_none(tmp_path: Path) -> None:
    shutil.copytree(RECORDINGS / "quinn_quinn/handshake/1", tmp_path / "1")
    artifacts = Artifacts(tmp_path / "1")
    assert load_evidence(artifacts) is not None
    rewrite(artifacts.evidence, lambda document: document.update(error={"message": "something"}))
    assert load_evidence(artifacts) is None


@pytest.mark.parametrize(
    ("file", "field"), [("run.json", "started_unix_s"), (f"{ALPHA.path}/result.json", "started_unix_s")]
)
@pytest.mark.parametrize("value", [-1.0, 1e15, 1e300])
def test_a_moment_that_no_calendar_has_is_refused(stranger: RunFolder, file: str, field: str, value: float) -> None:
    rewrite(stranger.path / file, lambda document: document.update({field: value}))
    with pytest.raises(UsageError):
        RunFolder.open(stranger.path).results()


def test_what_rankings_cannot_take_is_refused(stranger: RunFolder) -> None:
    rewrite(stranger.path / ALPHA.path / "result.json", lambda document: document["sample"].update(ttlb=0.0))
    with pytest.raises(UsageError, match=r"sample\.ttlb.* more than 0"):
        stranger.results()
    rewrite(stranger.path / "run.json", lambda document: document["cases"]["sat"].update(wire_names={}))
    with pytest.raises(UsageError, match="wire_names"):
        RunFolder.open(stranger.path)


def _direction(run: dict[str, Any]) -> dict[str, Any]:
    segment: dict[str, Any] = next(iter(run["cases"].values()))["link"]["segments"][0]
    direction: dict[str, Any] = segment["forward"]
    return direction


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("link.segments", lambda run: next(iter(run["cases"].values()))["link"].update(segments=[])),
        ("link.segments", lambda run: _direction(run).update(delay=-0.5)),
        ("link.segments", lambda run: _direction(run).update(data_rate=0)),
        ("middleboxes", lambda run: run.update(vias=["", "no-such-middlebox"])),
        ("middleboxes", lambda run: run["order"][0].update(via="no-such-middlebox")),
    ],
)
def test_a_run_that_names_what_it_lacks_is_refused(
    stranger: RunFolder, field: str, change: Callable[[dict[str, Any]], None]
) -> None:
    rewrite(stranger.path / "run.json", change)
    with pytest.raises(UsageError, match=field):
        RunFolder.open(stranger.path)


def test_a_sight_that_nobody_looked_for_is_drawn(tmp_path: Path) -> None:
    folder = vias_run(tmp_path / "paths", iterations=1)
    path = next(path for path in folder.path.rglob("result.json") if json.loads(path.read_bytes())["crossing"])

    def plant(document: dict[str, Any]) -> None:
        document["crossing"]["sights"][0]["what"] = "the moon"

    rewrite(path, plant)
    render([folder], tmp_path / "site")


def test_a_finding_with_fewer_times_than_packets_is_drawn(tmp_path: Path) -> None:
    folder = vias_run(tmp_path / "paths", iterations=1)
    finding = dict.fromkeys(("code", "requirement", "expected", "actual", "log_tail", "role", "section"), "x")
    for path in folder.path.rglob("result.json"):
        proof = {"packets": [1, 2], "times": [0.5], "vantage": "client"}
        rewrite(path, lambda document, proof=proof: document.update(outcome="failed", findings=[finding | proof]))
    render([folder], tmp_path / "site")


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document["client"]["kind"].__setitem__(0, 753797),
        lambda document: document["server"]["kind"].__setitem__(0, -1),
        lambda document: document["rate"].pop("return_raw"),
        lambda document: document["rate"].update(interval_s=[]),
    ],
)
def test_series_that_cannot_be_drawn_are_none(tmp_path: Path, change: Callable[[Any], object]) -> None:
    source = next(job.series for _, job in _recorded_series(tmp_path))
    assert load_series(source) is not None
    rewrite(source, change)
    assert load_series(source) is None


@pytest.mark.parametrize("number", ["-Infinity", "1e999", str(2**70)])
def test_a_truth_with_impossible_numbers_is_no_truth(tmp_path: Path, number: str) -> None:
    """Otherwise the judge's result could not be stored, or not be read again."""
    path = tmp_path / "truth.json"
    text = (RECORDINGS / "quinn_quinn/transfer/1/sim/truth.json").read_text()
    path.write_text(text)
    assert load_truth(path) is not None
    document = json.loads(text)
    document["receive_lateness_s"]["max"] = "NUMBER"
    path.write_text(json.dumps(document).replace('"NUMBER"', number))
    assert load_truth(path) is None


def _recorded_series(folder: Path) -> list[tuple[Path, Artifacts]]:
    recorded = recorded_run(folder / "recorded").path
    jobs = [(path, Artifacts(path.parent)) for path in sorted(recorded.rglob("series.json"))]
    return [(path, job) for path, job in jobs if json.loads(path.read_bytes())["client"]["kind"]]


def test_a_run_that_cannot_be_drawn_costs_no_other(
    stranger: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of ours is needed for it: none is known."""
    from runner.cli.base import draw_site  # noqa: PLC0415
    from runner.site import site  # noqa: PLC0415

    other = rare_run(tmp_path / "logs/other")
    drawn = site._Site._run

    def fail(self: Any, folder: Any, states: dict[str, str]) -> None:
        if folder.name == "stranger":
            raise ZeroDivisionError("by a stranger's number")
        drawn(self, folder, states)

    monkeypatch.setattr(site._Site, "_run", fail)
    messages: list[str] = []
    assert draw_site([stranger, other], tmp_path / "site", messages.append).is_file()
    assert len(messages) == 1 and "fault of bentpipe" in messages[0]
    assert (tmp_path / "site/other/index.html").is_file()
    with pytest.raises(UndrawableRunError):
        draw_site([stranger], tmp_path / "second")


def test_a_folder_whose_files_are_all_too_large_to_mutate_is_left_as_it_is(tmp_path: Path) -> None:
    with (tmp_path / "run.json").open("wb") as file:
        file.truncate(1 << 40)
    assert mutations.mutate(Random(1), tmp_path) == []


_MAY = (
    os.geteuid() == 0
    and subprocess.run(
        ["unshare", "--mount", "--pid", "--net", "--fork", "true"], capture_output=True, check=False
    ).returncode
    == 0
)


@pytest.mark.skipif(not _MAY, reason="namespaces need root")
def test_a_short_campaign() -> None:
    """Seed and numbers are fixed: the long one is `python -m lab.attack folders`."""
    tally = Tally()
    attack_folders(tally, seed=5, numbers=range(_SHORT), progress=lambda _: None, patience=2.0)
    assert tally.tried == _SHORT
    assert [finding.text for finding in tally.findings] == []
    assert tally.count(Verdict.HELD) == _SHORT


@pytest.mark.skipif(not _MAY, reason="namespaces need root")
@pytest.mark.parametrize("command", ["analyse", "render --out site"])
def test_a_run_folder_that_is_read_only_is_told_in_a_sentence(stranger: RunFolder, command: str) -> None:
    folder = stranger.path
    words = command.replace("site", str(folder / "site"))
    script = (
        f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder}"
        f" && exec {sys.executable} -m runner {words} {folder}"
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("bentpipe: The ")
    assert done.stderr.count("\n") == 1 and "Read-only file system" in done.stderr


def test_a_run_of_stacks_that_nobody_knows_is_not_resumed(stranger: RunFolder) -> None:
    done = bentpipe("run", "--yes", "--run", stranger.path)
    assert done.returncode == 2
    assert "'alpha', which is not in implementations.json" in done.stderr
