"""What a guest is told and what it reports, without a guest."""

import json
from pathlib import Path

import pytest

from runner.campaign import clocks
from runner.compare.conditions import differences, refuse
from runner.config.catalog import Catalog
from runner.errors import LaneError, UsageError
from runner.guests.description import Description, describe_pair
from runner.guests.disks import Disk, owner
from runner.guests.reading import read_report
from runner.inputs import inputs
from runner.lanes.request import EndpointSpec, LaneJob
from runner.model.job import Job
from runner.model.link_record import LinkParameters, LinkRecord
from runner.model.run import Run
from runner.model.topology import Topology
from runner.plan.runs import extend_run
from runner.store import RunFolder

LINK = LinkParameters(data_rate=10_000_000, delay=0.3, queue_packets=25, loss=0.01)
PASSWD = "root:x:0:0:root:/root:/bin/sh\nweb:x:101:33:web:/var/www:/bin/sh\n"
GROUPS = "root:x:0:\nstaff:x:50:\n"


def records(content: bytes) -> list[tuple[str, tuple[str, ...]]]:
    words = content.decode().split("\0")[:-1]
    found = []
    while words:
        name, count = words[0], int(words[1])
        found.append((name, tuple(words[2 : 2 + count])))
        words = words[2 + count :]
    return found


def job(*, seed: int = 3) -> LaneJob:
    files = inputs.served_files(7, (1024,))
    return LaneJob(
        job=Job(server="one", client="other", case="handshake", iteration=1),
        folder=Path("/nowhere"),
        client=EndpointSpec(image="other", environment={"TESTCASE": "handshake", "CLIENT_PARAMS": "a\nb c"}),
        server=EndpointSpec(image="one", environment={"TESTCASE": "handshake"}),
        topology=Topology(link=LinkRecord.single("test", LINK, LINK)),
        seed=seed,
        timeout=60,
        files=files,
    )


def described(*, seed: int = 3) -> list[tuple[str, tuple[str, ...]]]:
    def disk(name: str) -> Disk:
        return Disk(path=Path(f"/disks/{name}.erofs"), command=(f"/{name}",), environment={"PATH": "/bin"}, user=101)

    disks = {role: disk(role) for role in ("client", "server", "sim")}
    return records(describe_pair(job(seed=seed), disks, "/disks"))


def test_a_pair_gets_the_world_of_a_lane() -> None:
    found = described()
    names = [name for name, _ in found]
    assert names.count("cable") == 2 and names.count("namespace") == 3 and names.count("capture") == 2
    processes = {fields[0]: fields for name, fields in found if name == "process"}
    assert processes["client"][:4] == ("client", "client", "client", "101")
    assert "CLIENT_PARAMS=a\nb c" in processes["client"], "free text keeps its lines"
    assert "ROLE=server" in processes["server"]
    assert json.loads(processes["sim"][-1])["ready_port"] == 57832
    hosts = next(fields[2] for name, fields in found if name == "file" and fields[:2] == ("client", "/etc/hosts"))
    assert "193.167.100.100\tserver4\n" in hosts and "fd00:cafe:cafe:100::100\tserver46\n" in hosts
    settings = {fields[0]: fields[1] for name, fields in found if name == "set"}
    assert float(settings["timeout"]) == 60
    assert float(settings["one_way_sum"]) == pytest.approx(0.6)


def test_only_the_seed_tells_two_iterations_apart() -> None:
    one, other = described(seed=3), described(seed=4)
    different = [(a, b) for a, b in zip(one, other, strict=True) if a != b]
    [(before, after)] = different
    [old], [new] = set(before[1]) - set(after[1]), set(after[1]) - set(before[1])
    assert json.loads(new) == json.loads(old) | {"seed": 4}


def test_a_field_with_a_nul_is_refused() -> None:
    with pytest.raises(ValueError, match="NUL"):
        Description().add("file", "client", "a\0b")


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("", (0, 0, "/root")),
        ("web", (101, 33, "/var/www")),
        ("101", (101, 33, "/var/www")),
        ("web:staff", (101, 50, "/var/www")),
        ("4242", (4242, 0, "/")),
        ("4242:7", (4242, 7, "/")),
    ],
)
def test_users_are_read_as_the_engine_reads_them(declared: str, expected: tuple[int, int, str]) -> None:
    assert owner(declared, PASSWD, GROUPS) == expected


@pytest.mark.parametrize("declared", ["nobody", "web:nogroup"])
def test_a_user_that_the_image_does_not_know(declared: str) -> None:
    with pytest.raises(LaneError, match="is not in its /etc/"):
        owner(declared, PASSWD, GROUPS)


def test_a_report_that_was_cut_off_is_read_as_far_as_it_goes() -> None:
    report = read_report(
        "began 100.5\nstage server-ready 0.05\nready 1\nerror link-died The simulator ended.\nerror other no\n"
        "process client started=1 ended=1 code=137 began=101.0 end=102.5 stopped=0 timed_out=1 flooded=0 printed=9\n"
    )
    assert (report.began, report.ready, report.done) == (100.5, True, None)
    assert report.stages == {"server ready": 0.05}
    assert report.error == {"code": "link-died", "message": "The simulator ended."}, "the first one counts"
    client = report.processes["client"]
    assert (client.code, client.timed_out, client.end - client.began) == (137, True, 1.5)


def test_certificates_follow_from_seed_and_time() -> None:
    def made(seed: int) -> dict[str, bytes]:
        return inputs.certificates(chain_length=3, seed=seed, now=clocks.EPOCH).files()

    assert made(1) == made(1)
    assert made(1)["priv.key"] != made(2)["priv.key"]
    assert inputs.certificates().key != inputs.certificates().key


def run_of(clock_name: str, catalog: Catalog | None = None) -> Run:
    cases = {name: catalog.cases[name].record() for name in ("handshake", "sat", "satloss")} if catalog else {}
    run = Run(
        name="run",
        started_unix_s=1.0,
        bentpipe_version="0",
        host={},
        seed=1,
        shuffled=False,
        clients=(),
        servers=(),
        cases=cases,
        implementations={},
        order=(),
    )
    return clocks.on(run, clock_name)


def test_a_run_keeps_its_clock(tmp_path: Path) -> None:
    virtual = run_of("virtual")
    folder = RunFolder.create(tmp_path / "run", virtual)
    assert RunFolder.open(folder.path).run.clock == "virtual"
    assert clocks.chosen(None, folder.path) == "virtual"
    assert clocks.chosen(None, tmp_path / "new") == "real"
    with pytest.raises(UsageError, match="can't be pooled"):
        extend_run(folder, run_of("real"))


def test_runs_of_two_clocks_are_compared_only_by_who_knows(catalog: Catalog) -> None:
    found = differences(run_of("real", catalog), run_of("virtual", catalog))
    assert list(found) == ["clock"]
    with pytest.raises(UsageError, match="--despite clock"):
        refuse(found, frozenset())
    refuse(found, frozenset({"clock"}))


def test_auto_gives_each_case_a_clock_of_its_own(catalog: Catalog) -> None:
    run = run_of("auto", catalog)
    assert {name: run.clock_of(name) for name in run.cases} == {
        "handshake": "virtual",
        "sat": "real",  # 20 Mbit/s: a slow stack's CPU limits it
        "satloss": "virtual",
    }
    jobs = [Job(server="s", client="c", case=name, iteration=1) for name in ("sat", "handshake", "satloss")]
    assert [(name, [job.case for job in part]) for name, part in clocks.parts(run, jobs)] == [
        ("virtual", ["handshake", "satloss"]),
        ("real", ["sat"]),
    ]
    [sentence] = differences(run, run_of("virtual", catalog))["clock"]
    assert sentence.startswith("sat: real time before, virtual time after")


def test_one_clock_for_all_cases_is_that_of_each(catalog: Catalog) -> None:
    assert {run_of("virtual", catalog).clock_of(name) for name in ("handshake", "sat")} == {"virtual"}
