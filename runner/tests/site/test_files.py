"""The files of a job on the site: second names of small ones, a link to the rest, qlogs one by one."""

import shutil
from pathlib import Path

from runner.model.result import Artifacts
from runner.site.series import LARGEST_COPY, publish


def job(tmp_path: Path) -> Artifacts:
    folder = tmp_path / "logs/s_c/sat/1"
    for name in ("client/qlog", "server/qlog", "sim"):
        (folder / name).mkdir(parents=True)
    (folder / "result.json").write_text("{}")
    (folder / "sim/left.pcap").write_bytes(bytes(LARGEST_COPY + 1))
    (folder / "client/keys.log").write_text("secret")
    (folder / "client/keys.log").chmod(0o600)
    (folder / "client/qlog/a b#1.sqlog").write_text("{}")
    for number in range(5):
        (folder / f"server/qlog/{number}.qlog").write_text("{}")
    return Artifacts(folder)


def test_small_files_are_there_and_the_rest_is_reached(tmp_path: Path) -> None:
    artifacts, place = job(tmp_path), tmp_path / "site/s_c/sat/1"
    outcome = {value.label: value for value in publish(artifacts, staging=place, final=place)}
    for value in outcome.values():
        assert (place / value.href.replace("%20", " ").replace("%23", "#")).exists(), value
    assert outcome["capture, client side"].href == "artifacts/sim/left.pcap"
    assert outcome["capture, client side"].size == LARGEST_COPY + 1
    assert (place / "result.json").samefile(artifacts.result)
    # Who may read a copy decides the site; a second name would keep what nobody else may read.
    assert not (place / "client/keys.log").samefile(artifacts.folder / "client/keys.log")


def test_a_capture_with_secrets_says_so_and_of_which_job_it_is(tmp_path: Path) -> None:
    artifacts, place = job(tmp_path), tmp_path / "site/s_c/sat/1"
    (artifacts.folder / "sim/left.pcap").rename(artifacts.folder / "sim/left.pcapng")
    (outcome,) = (one for one in publish(artifacts, staging=place, final=place) if one.label.startswith("capture"))
    assert (outcome.label, outcome.href) == ("capture with secrets, client side", "artifacts/sim/left.pcapng")
    assert outcome.name == "s_c-sat-1-left.pcapng"


def test_a_qlog_is_offered_by_itself_and_many_as_a_folder(tmp_path: Path) -> None:
    artifacts, place = job(tmp_path), tmp_path / "site/s_c/sat/1"
    outcome = [one for one in publish(artifacts, staging=place, final=place) if "qlog" in one.label]
    assert [(one.label, one.href, one.qlog) for one in outcome] == [
        ("qlog, client", "artifacts/client/qlog/a%20b%231.sqlog", True),
        ("qlog, server", "artifacts/server/qlog/", False),
    ]


def test_a_job_of_an_import_has_no_folder(tmp_path: Path) -> None:
    artifacts, place = job(tmp_path), tmp_path / "site/s_c/sat/1"
    shutil.rmtree(artifacts.folder / "sim")
    for role in ("client", "server"):
        shutil.rmtree(artifacts.folder / role)
    assert publish(artifacts, staging=place, final=place) == []
    assert not place.exists()
