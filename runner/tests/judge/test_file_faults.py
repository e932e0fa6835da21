"""The role at fault for a file that differs: of recorded pairs whose packets or saved files were changed."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.mutate.recording import Recording
from lab.mutate.wire import F
from runner.decode.columns import CLIENT, SERVER
from runner.inputs.inputs import ServedFile
from runner.judge.judges import analyse
from runner.model.result import Artifacts, Finding, Outcome
from runner.plan.catalog import Catalog
from runner.tests.judge.test_analyse import JOB, edit
from runner.tests.judge.test_crafted import Change, Tables, craft
from runner.tests.records import RECORDINGS

Recorded = Callable[[str], Artifacts]
PAIRS = ("quic-go_quic-go", "quinn_quinn", "aioquic_aioquic")
SEED = 5
UNKNOWN = "the packets do not show whose fault it is"


def _finding(catalog: Catalog, artifacts: Artifacts, *sizes: int) -> Finding:
    case = catalog.cases["transfer" if sizes else "handshake"]
    record = replace(case.record(), file_sizes=sizes) if sizes else case.record()
    # Small files stay below the first limits of flow control, which makes `transfer` unsupported.
    result = analyse(JOB, artifacts, replace(case, capabilities=()), record)
    assert result.outcome is Outcome.FAILED
    (finding,) = [finding for finding in result.findings if finding.code == "files-differ"]
    return finding


def _saved(artifacts: Artifacts, index: int = 0, **fields: Any) -> None:
    edit(artifacts, lambda evidence: evidence["files"][index].update(equal=False, **fields))


def _with_content(path: Path, folder: Path, *, role: str) -> Artifacts:
    """A handshake whose file has the content that belongs to SEED; its third byte is changed by `role`."""
    recording = Recording.load(path)
    record = recording.evidence["files"][0]
    content = ServedFile(name=record["name"], size=record["size"], seed=SEED).content()
    if role == "server":
        content = content[:2] + bytes([content[2] ^ 1]) + content[3:]
    for _, packet, frame in list(recording.frames(F.STREAM, sender="server")):
        packet.swap(frame, frame.but(data=content[frame.offset : frame.end]))
    recording.evidence["content_seed"] = SEED
    record.update(equal=False)
    return Artifacts(recording.save(folder))


def _shortened(path: Path, folder: Path) -> Artifacts:
    """A handshake whose server ends its answer 24 bytes early."""
    recording = Recording.load(path)
    for _, packet, frame in list(recording.frames(F.STREAM, sender="server")):
        packet.swap(frame, frame.but(data=frame.data[: max(0, 1000 - frame.offset)]))
    recording.evidence["files"][0].update(equal=False, received=1000)
    return Artifacts(recording.save(folder))


@pytest.mark.parametrize("pair", PAIRS)
def test_a_server_whose_answer_is_short_is_at_fault(catalog: Catalog, tmp_path: Path, pair: str) -> None:
    finding = _finding(catalog, _shortened(RECORDINGS / pair / "handshake" / "1", tmp_path / "job"))
    assert finding.role == "server"
    assert finding.actual.endswith("has 1000 of 1024 B; the server's answer has 1000 of 1024 B")
    assert finding.packets


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize(
    ("role", "why"),
    [("server", "the server sent other content"), ("client", "the right content reached the client")],
)
def test_who_changed_the_content_is_at_fault(catalog: Catalog, tmp_path: Path, pair: str, role: str, why: str) -> None:
    artifacts = _with_content(RECORDINGS / pair / "handshake" / "1", tmp_path / "job", role=role)
    finding = _finding(catalog, artifacts)
    assert finding.role == role
    assert finding.actual.endswith(f"has the right size, but other content; {why}")
    assert finding.packets


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("received", [None, 1023, 2048])
def test_a_client_that_got_the_whole_file_is_at_fault(
    catalog: Catalog, recorded: Recorded, pair: str, received: int | None
) -> None:
    artifacts = recorded(f"{pair}/handshake")
    _saved(artifacts, received=received)
    finding = _finding(catalog, artifacts)
    assert (finding.role, bool(finding.packets)) == ("client", True)
    assert finding.actual.endswith("all 1024 bytes reached the client")


@pytest.mark.parametrize("pair", PAIRS)
def test_a_client_that_never_requested_the_file_is_at_fault(catalog: Catalog, recorded: Recorded, pair: str) -> None:
    artifacts = recorded(f"{pair}/handshake")
    _saved(artifacts, name="another", received=None)
    finding = _finding(catalog, artifacts)
    assert finding.role == "client"
    assert finding.actual == "another is missing; the client never requested it"
    assert finding.packets


@pytest.mark.parametrize("pair", PAIRS)
def test_content_that_is_known_neither_from_a_seed_nor_whole_tells_nothing(
    catalog: Catalog, recorded: Recorded, pair: str
) -> None:
    artifacts = recorded(f"{pair}/handshake")
    _saved(artifacts)
    finding = _finding(catalog, artifacts)
    assert (finding.role, finding.packets) == ("", ())
    assert finding.actual.endswith(f"has the right size, but other content; {UNKNOWN}")


def _without_answer(tables: Tables) -> None:
    """The last frame of the answer never left the server."""
    tables["stream_frames"] = [frame for frame in tables["stream_frames"] if frame["sender"] != SERVER]


def _closed_by(sender: int, *, code: int = 0) -> Change:
    def change(tables: Tables) -> None:
        for frame in tables["frames"]:
            if frame["name"] in ("connection_close", "application_close"):
                frame.update(sender=sender, value=code)

    return change


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize(("sender", "role"), [(CLIENT, "client"), (SERVER, "server")])
def test_who_closed_before_the_end_of_the_answer_is_at_fault(
    catalog: Catalog, recorded: Recorded, pair: str, sender: int, role: str
) -> None:
    artifacts = craft(catalog, recorded(f"{pair}/handshake"), "handshake", _without_answer, _closed_by(sender))
    _saved(artifacts, received=None)
    finding = _finding(catalog, artifacts)
    assert (finding.role, bool(finding.packets)) == (role, True)
    assert finding.actual.endswith(f"the {role} closed the connection when 0 of 1024 B had arrived")


def test_a_server_that_we_stop_after_the_time_out_did_not_close_early(catalog: Catalog, recorded: Recorded) -> None:
    artifacts = craft(catalog, recorded("quinn_quinn/handshake"), "handshake", _without_answer, _closed_by(SERVER))
    _saved(artifacts, received=None)
    path = artifacts.folder / "evidence.json"
    evidence = json.loads(path.read_text())
    evidence["client"].update(timed_out=True, ended=evidence["client"]["started"])
    path.write_text(json.dumps(evidence))
    case = catalog.cases["handshake"]
    result = analyse(JOB, artifacts, case, case.record())
    assert {finding.role for finding in result.findings} == {""}


def test_files_with_faults_of_both_roles_name_no_role(catalog: Catalog, recorded: Recorded) -> None:
    artifacts = recorded("quinn_quinn/transfer")
    sizes = (20480, 30720, 51200)
    _saved(artifacts, 0, received=None)
    finding = _finding(catalog, artifacts, *sizes)
    assert finding.role == "client"
    _saved(artifacts, 1, received=30719, size=30719)  # as if the server had sent one byte more
    finding = _finding(catalog, artifacts, *sizes)
    assert (finding.role, finding.packets) == ("", ())
    assert finding.actual.endswith(UNKNOWN)


def test_without_keys_no_role_is_named(catalog: Catalog, recorded: Recorded) -> None:
    artifacts = recorded("quinn_quinn/handshake")
    for path in artifacts.key_logs:
        path.write_text("# nothing\n")
    _saved(artifacts, received=None)
    finding = _finding(catalog, artifacts)
    assert (finding.role, finding.packets) == ("", ())
    assert finding.actual.endswith(UNKNOWN)


def test_a_proxy_may_have_answered_in_the_servers_place(catalog: Catalog, tmp_path: Path) -> None:
    artifacts = _shortened(RECORDINGS / "quinn_quinn" / "handshake" / "1", tmp_path / "job")
    boxes = ["terminal", "gateway"]
    proxy = {"name": "p", "image": "i", "url": "u", "version": "v", "boxes": boxes, "splits_quic": boxes}
    edit(artifacts, lambda evidence: evidence.update(via=proxy))
    finding = _finding(catalog, artifacts)
    assert (finding.role, finding.packets) == ("", ())


@pytest.mark.parametrize("pair", PAIRS)
def test_a_client_that_acknowledged_what_it_did_not_receive_is_at_fault(
    catalog: Catalog, tmp_path: Path, pair: str
) -> None:
    recording = Recording.load(RECORDINGS / pair / "handshake" / "1")
    for datagram in {id(each): each for each, _, _ in recording.frames(F.STREAM, sender="server")}.values():
        recording.lose(datagram)
    for datagram in {id(each): each for each, _, _ in recording.frames(0x1C, 0x1D)}.values():
        recording.remove(datagram)
    recording.evidence["files"][0].update(equal=False, received=None)
    finding = _finding(catalog, Artifacts(recording.save(tmp_path / "job")))
    assert finding.role == "client"
