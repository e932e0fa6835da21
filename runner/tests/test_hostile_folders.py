"""Run folders of strangers: names, links and documents in them reach nothing outside of them."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from lab.run_folders import rare_run
from runner.campaign.campaign import apply_retention
from runner.decode.capture import embed_secrets
from runner.decode.keys import LARGEST_KEY_LOG
from runner.decode.tables import decode_capture
from runner.errors import UsageError
from runner.files import RefusedFileError, beneath, foreign_entry, read_regular, remove_tree
from runner.judge.execution import flood
from runner.model.result import Artifacts
from runner.model.run import Job, Retention, name_problem
from runner.paths import ROOT
from runner.plan.catalog import load_catalog
from runner.site import render
from runner.site.server import SiteServer
from runner.site.writer import Writer
from runner.store.runs import RunFolder, find_runs, load_evidence, write_atomically
from runner.tests.program import bentpipe
from runner.tests.records import RECORDINGS

ESCAPES = ("..", "../../precious", "/precious", "a/b", "", ".hidden", "a\nb", "x" * 300, "\x1b[31m", "a\\b")
ALPHA = Job(server="alpha", client="alpha", case="sat", iteration=1)


def rewrite(path: Path, change: Any) -> None:
    """Let `change` alter the JSON document in `path`."""
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


@pytest.fixture
def stranger(tmp_path: Path) -> RunFolder:
    return rare_run(tmp_path / "logs/stranger")


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A folder that nobody may change, with the layout of a job in it."""
    folder = tmp_path / "precious"
    (folder / "sat/1").mkdir(parents=True)
    (folder / "sat/1/thesis.tex").write_text("years of work")
    return folder


@pytest.mark.parametrize("name", ESCAPES)
def test_a_name_that_leads_elsewhere_is_none(name: str) -> None:
    assert name_problem(name) is not None


@pytest.mark.parametrize("name", ["quinn", "quinn+cca=bbr+iw=32", "page-geo", "goodput-500kB-geo~1", "é <b>"])
def test_names_of_this_project_are_names(name: str) -> None:
    assert name_problem(name) is None


@pytest.mark.parametrize("name", ESCAPES)
@pytest.mark.parametrize("field", ["cases", "order", "servers", "name", "implementations"])
def test_a_name_in_run_json_that_leads_elsewhere_is_refused(stranger: RunFolder, field: str, name: str) -> None:
    def plant(document: dict[str, Any]) -> None:
        if field in ("cases", "implementations"):
            entry = next(iter(document[field].values()))
            document[field][name] = entry | {"name": name}
        elif field == "order":
            document["order"][0]["client"] = name
        elif field == "servers":
            document["servers"][0] = name
        else:
            document["name"] = name

    rewrite(stranger.path / "run.json", plant)
    with pytest.raises(UsageError, match=r"run\.json, field "):
        RunFolder.open(stranger.path)


def test_render_of_a_strangers_run_deletes_nothing(stranger: RunFolder, tmp_path: Path, precious: Path) -> None:
    """The attack: a case called `../../../../precious`, whose folder of the site is removed before it is drawn."""
    site = tmp_path / "site"
    render([stranger], site)

    def plant(document: dict[str, Any]) -> None:
        name = "../../../precious"
        document["cases"][name] = document["cases"]["sat"] | {"name": name}
        document["order"] += [document["order"][0] | {"case": name}]

    rewrite(stranger.path / "run.json", plant)
    done = bentpipe("render", stranger.path, "--out", site)
    assert done.returncode == 2
    assert "can't be a name" in done.stderr
    assert (precious / "sat/1/thesis.tex").is_file()


def test_a_writer_removes_its_own_alone(tmp_path: Path, precious: Path) -> None:
    site = tmp_path / "site"
    (site / "run").mkdir(parents=True)
    (site / "run/linked").symlink_to(precious)
    for path in ("../precious", "run/../../precious", "run/linked", "run/linked/sat", "/precious", "."):
        with pytest.raises(UsageError):
            Writer(site, site).remove(path)
    assert (precious / "sat/1/thesis.tex").is_file()
    Writer(site, site).remove("run/nothing")


def test_a_result_that_tells_of_another_job_is_refused(stranger: RunFolder, tmp_path: Path) -> None:
    """The attack: `server: "../victim/quinn"` makes `analyse` write the verdict of another run."""
    victim = rare_run(tmp_path / "logs/victim")
    before = (victim.path / ALPHA.path / "result.json").read_bytes()
    rewrite(stranger.path / ALPHA.path / "result.json", lambda one: one.update(server="../victim/alpha"))
    with pytest.raises(UsageError, match="can't be a name: it begins with a dot"):
        stranger.results()
    rewrite(stranger.path / ALPHA.path / "result.json", lambda one: one.update(server="beta"))
    with pytest.raises(UsageError, match="its folder belongs to another job"):
        stranger.results()
    done = bentpipe("analyse", stranger.path)
    assert "left out: " in done.stderr
    assert "Traceback" not in done.stderr
    assert (victim.path / ALPHA.path / "result.json").read_bytes() == before


def test_a_linked_job_folder_is_no_job(stranger: RunFolder, precious: Path) -> None:
    shutil.copyfile(stranger.path / ALPHA.path / "result.json", precious / "sat/1/result.json")
    shutil.rmtree(stranger.path / "alpha_alpha")
    (stranger.path / "alpha_alpha").symlink_to(precious)
    with pytest.raises(UsageError, match="symbolic link"):
        stranger.results()
    with pytest.raises(UsageError, match="symbolic link"):
        stranger.save_result(rare_result(stranger))
    with pytest.raises(UsageError, match="symbolic link"):
        remove_tree(stranger.path, ALPHA.path)
    assert (precious / "sat/1/thesis.tex").is_file()


def rare_result(folder: RunFolder) -> Any:
    """Some other result of the run, as that of ALPHA."""
    document = json.loads((folder.path / "alpha_<b>&\"'/sat/1/result.json").read_text())
    result = folder.result(Job(server="alpha", client=document["client"], case="sat", iteration=1))
    assert result is not None
    return replace(result, client="alpha")


def test_retention_deletes_no_capture_behind_a_link(stranger: RunFolder, precious: Path) -> None:
    (precious / "left.pcap").write_text("somebody's capture")
    (stranger.path / ALPHA.path / "sim").symlink_to(precious)
    with pytest.raises(UsageError, match="symbolic link"):
        apply_retention(stranger, ALPHA, Retention.NONE)
    assert (precious / "left.pcap").is_file()


def test_analyse_leaves_a_job_with_links_alone(tmp_path: Path, precious: Path) -> None:
    from lab.run_folders import recorded_run  # noqa: PLC0415 - slow to make

    folder = recorded_run(tmp_path / "logs/run")
    job = folder.path / "quinn_quinn/goodput/1"
    shutil.rmtree(job / "tables")
    (job / "tables").symlink_to(precious)
    done = bentpipe("analyse", folder.path)
    assert done.returncode == 0, done.stderr
    assert "tables is a symbolic link" in done.stderr
    assert not list(precious.rglob("*.parquet"))


@pytest.mark.parametrize("name", ["run.json", ".lock"])
def test_a_link_or_pipe_in_the_place_of_our_files_is_refused(stranger: RunFolder, tmp_path: Path, name: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    place = stranger.path / name
    for target in (str(secret), "", "/dev/zero"):
        place.unlink(missing_ok=True)
        place.symlink_to(target) if target else os.mkfifo(place)
        if name == "run.json":
            with pytest.raises(UsageError, match=r"symbolic link|not a regular file"):
                RunFolder.open(stranger.path)
        elif place.is_symlink():
            with pytest.raises(UsageError), stranger.locked():
                pass
    assert secret.read_text() == "secret"


def test_a_file_is_not_written_into_a_planted_link(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (tmp_path / f".result.json.{os.getpid()}.tmp").symlink_to(secret)
    write_atomically(tmp_path / "result.json", b"new")
    assert (secret.read_text(), (tmp_path / "result.json").read_bytes()) == ("secret", b"new")


def test_reading_has_a_limit_and_never_blocks(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(11))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "large")
    assert read_regular(tmp_path / "large", limit=11) == bytes(11)
    for path, limit in ((tmp_path / "large", 10), (tmp_path / "pipe", 10), (tmp_path / "link", 11)):
        with pytest.raises(RefusedFileError):
            read_regular(path, limit=limit)
    with pytest.raises(UsageError):
        beneath(tmp_path, "link/x")


def test_what_bentpipe_never_makes_is_found_in_a_job(tmp_path: Path) -> None:
    job = tmp_path / "1"
    shutil.copytree(RECORDINGS / "quinn_quinn/transfer/1", job)
    assert foreign_entry(job) is None
    deep = job / "/".join("d" * 14)
    deep.mkdir(parents=True)
    assert "deeper" in (foreign_entry(job) or "")
    shutil.rmtree(job / "d")
    os.mkfifo(job / "client/pipe")
    assert foreign_entry(job) == "client/pipe is neither a file nor a folder"


ODD = ("NaN", "Infinity", "1e999", str(2**64), "-" + str(2**80), "[" * 100_000, '{"a":' * 100_000, "\x1b[2J", "true")


@pytest.mark.parametrize("text", ODD, ids=lambda text: text[:12])
def test_an_odd_result_is_left_out_with_one_sentence_and_the_rest_is_drawn(
    stranger: RunFolder, tmp_path: Path, text: str
) -> None:
    path = stranger.path / ALPHA.path / "result.json"
    path.write_text(path.read_text().replace('"wall_s": 0.0', f'"wall_s": {text}'))
    messages: list[str] = []
    folder = RunFolder.open(stranger.path, messages.append)
    count = len(folder.results())
    assert len(messages) == (0 if text == "true" else 1), "true is read as 1, as JSON readers of other languages do"
    assert count == len(list(stranger.path.glob("*/*/*/result.json"))) - len(messages)
    assert all(len(sentence) < 1000 for sentence in messages)
    render([folder], tmp_path / "site")


def test_a_run_that_cannot_be_read_does_not_hide_the_others(stranger: RunFolder) -> None:
    for name, text in (("a", "["), ("b", "[" * 100_000), ("c", '{"schema": -5}'), ("d", '{"schema": true}')):
        (stranger.path.parent / name).mkdir()
        (stranger.path.parent / name / "run.json").write_text(text)
    messages: list[str] = []
    assert [folder.name for folder in find_runs(stranger.path.parent, messages.append)] == ["stranger"]
    assert len(messages) == 4
    with pytest.raises(UsageError):
        find_runs(stranger.path.parent)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A served site of a stranger's run with links and pages in a job's folder; returns its folder and port."""
    folder = rare_run(tmp_path / "logs/run")
    job = folder.path / ALPHA.path
    (tmp_path / "shadow").write_text("root:secret")
    (job / "client/qlog").mkdir(parents=True)
    for name in ("keys.log", "qlog/evil.qlog"):
        (job / "client" / name).symlink_to(tmp_path / "shadow")
    (job / "client/qlog/evil.html").write_text("<script>alert(1)</script>")
    (job / "client/qlog/trace.sqlog").write_text("{}")
    (job / "client/output.log").write_text("<script>alert(1)</script>")
    (job / "sim").mkdir()
    (job / "sim/left.pcapng").write_bytes(bytes(300_000))
    site = tmp_path / "site"
    render([folder], site)
    with SiteServer(("127.0.0.1", 0), site, ["lab.example"]) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield site, server.server_address[1]
        server.shutdown()


def get(port: int, path: str, host: str = "localhost") -> tuple[int, dict[str, str], bytes]:
    """Status, headers by small name, and content."""
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path, headers={"Host": host})
    answer = connection.getresponse()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


def test_no_link_of_a_job_reaches_the_site(served: tuple[Path, int]) -> None:
    site, port = served
    leaks = [path for path in site.rglob("*") if path.is_file() and b"root:secret" in path.read_bytes()]
    assert leaks == []
    assert not list(site.rglob("evil*"))
    job = f"/run/{ALPHA.path}"
    for path in (
        "client/keys.log",
        "artifacts/client/keys.log",
        "artifacts/client/qlog/evil.qlog",
        "../../../../shadow",
    ):
        assert get(port, f"{job}/{path}")[0] == 404
    # A link that somebody puts there later, and one in the folder of the job behind ours.
    (site / "run/leak.html").symlink_to(site.parent / "shadow")
    (site / f"run/{ALPHA.path}/artifacts/leak").symlink_to(site.parent / "shadow")
    capture = site.parent / f"logs/run/{ALPHA.path}/sim/left.pcapng"
    capture.unlink()
    capture.symlink_to(site.parent / "shadow")
    for path in ("/run/leak.html", f"{job}/artifacts/leak", f"{job}/artifacts/sim/left.pcapng"):
        assert get(port, path)[0] == 404


def test_files_of_jobs_are_text_or_downloads(served: tuple[Path, int]) -> None:
    _, port = served
    job = f"/run/{ALPHA.path}"
    status, headers, content = get(port, f"{job}/client/output.log")
    assert (status, headers["content-type"], content) == (
        200,
        "text/plain; charset=utf-8",
        b"<script>alert(1)</script>",
    )
    assert "sandbox" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    status, headers, _ = get(port, f"{job}/artifacts/sim/left.pcapng")
    assert (status, headers["content-type"]) == (200, "application/octet-stream")
    assert headers["content-disposition"] == "attachment"
    status, headers, _ = get(port, f"{job}/artifacts/client/qlog/trace.sqlog")
    assert (status, headers["access-control-allow-origin"]) == (200, "https://qvis.quictools.info")
    status, headers, _ = get(port, "/index.html")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "script-src 'self';" in headers["content-security-policy"]


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:1", 200), ("127.0.0.1", 200), ("[::1]:8000", 200), ("lab.example:80", 200), ("evil.example", 421)],
)
def test_a_host_that_is_not_ours_is_refused(served: tuple[Path, int], host: str, status: int) -> None:
    assert get(served[1], "/index.html", host)[0] == status


def test_a_key_log_of_many_megabytes_makes_nobody_a_flood(tmp_path: Path) -> None:
    """The attack: 95 MB of valid-looking lines in one key log, which made the peer a `packet-flood`."""
    job = tmp_path / "1"
    shutil.copytree(RECORDINGS / "quinn_quinn/transfer/1", job)
    artifacts = Artifacts(job)
    true = (job / "client/keys.log").read_bytes()
    with (job / "client/keys.log").open("ab") as log:
        for number in range(120_000):
            log.write(b"CLIENT_RANDOM %064x %096x\n" % (number, number))
    size = artifacts.server_capture.stat().st_size
    for capture in (artifacts.client_capture, artifacts.server_capture):
        embed_secrets(capture, artifacts.key_logs)
    assert artifacts.server_capture.suffix == ".pcapng"
    assert artifacts.server_capture.stat().st_size < 2 * size + 2 * LARGEST_KEY_LOG
    record, evidence = load_catalog().cases["transfer"].record(), load_evidence(artifacts)
    assert evidence is not None
    assert flood(artifacts, replace(record, file_sizes=(10,)), evidence, None) is None
    trace = decode_capture(artifacts.client_capture, ())
    assert trace.stream_frames.num_rows > 0, f"the true secrets stand first: {len(true)} B"


def test_what_an_image_wrote_commands_no_terminal(stranger: RunFolder) -> None:
    attack = "\x1b[2J\x1b]52;c;cm0gLXJm\x07\x9b31m\u202e\r\b"

    def plant(document: dict[str, Any]) -> None:
        document["findings"] = [
            dict.fromkeys(("code", "requirement", "expected", "actual", "log_tail", "role"), f"<{attack}>")
        ]

    rewrite(stranger.path / ALPHA.path / "result.json", plant)
    environment = os.environ | {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": "300"}
    command = [sys.executable, "-m", "runner", "show", str(stranger.path / ALPHA.path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, check=False, env=environment)
    text = done.stdout.decode() + done.stderr.decode()
    assert done.returncode == 0, text
    assert "\x1b[" in text, "its own colours are there"
    own = re.sub("\x1b\\[[0-9;]*m", "", text)
    assert not set(own) & set("\x1b\x07\x08\x9b\r\u202e")
