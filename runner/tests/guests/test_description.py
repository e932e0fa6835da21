"""The description and the report of a guest, without a guest."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from runner.compare.conditions import differences, refuse
from runner.errors import LaneError, UsageError
from runner.inputs import inputs
from runner.model.link import LinkParameters, LinkRecord, Topology
from runner.model.run import Job, Run
from runner.model.stack import BOXES, Middlebox
from runner.places.guests.guests import Description, describe_job, read_report
from runner.places.guests.processes import Disk, disk_of, owner
from runner.places.lane_job import EndpointSpec, LaneJob, network_script
from runner.plan import jobs as plan_jobs
from runner.plan.catalog import Catalog
from runner.store.runs import RunFolder, extend_run

LINK = LinkParameters(data_rate=10_000_000, delay=0.3, queue_packets=25, loss=0.01)
PASSWD = "root:x:0:0:root:/root:/bin/sh\nweb:x:101:33:web:/var/www:/bin/sh\n"
GROUPS = "root:x:0:\nstaff:x:50:\n"


def records(content: bytes) -> list[tuple[str, tuple[str, ...]]]:
    words = content.decode().split("\0")[:-1]
    collected = []
    while words:
        name, count = words[0], int(words[1])
        collected.append((name, tuple(words[2 : 2 + count])))
        words = words[2 + count :]
    return collected


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


DISK = Disk(path=Path("/disks/one.erofs"), command=("/one",), environment={})


def described(*, seed: int = 3) -> list[tuple[str, tuple[str, ...]]]:
    def disk(name: str) -> Disk:
        return Disk(path=Path(f"/disks/{name}.erofs"), command=(f"/{name}",), environment={"PATH": "/bin"}, user=101)

    disks = {role: disk(role) for role in ("client", "server", "sim")}
    return records(describe_job(job(seed=seed), disks, "/disks"))


def document(outcome: list[tuple[str, tuple[str, ...]]], role: str) -> dict[str, Any]:
    """The parameters of the link in the namespace `role`."""
    texts = [fields[2] for name, fields in outcome if name == "file" and fields[:2] == (role, "/parameters.json")]
    return json.loads(texts[0])  # type: ignore[no-any-return]


def test_a_pair_gets_the_world_of_a_lane() -> None:
    outcome = described()
    names = [name for name, _ in outcome]
    assert names.count("cable") == 2 and names.count("namespace") == 3 and names.count("capture") == 2
    processes = {fields[0]: fields for name, fields in outcome if name == "process"}
    assert processes["client"][:4] == ("client", "client", "client", "101")
    assert "CLIENT_PARAMS=a\nb c" in processes["client"], "free text keeps its lines"
    assert "ROLE=server" in processes["server"]
    assert processes["sim"][-1] == "@/parameters.json"
    assert document(outcome, "sim")["ready_port"] == 57832
    hosts = next(fields[2] for name, fields in outcome if name == "file" and fields[:2] == ("client", "/etc/hosts"))
    assert "193.167.100.100\tserver4\n" in hosts and "fd00:cafe:cafe:100::100\tserver46\n" in hosts
    settings = {fields[0]: fields[1] for name, fields in outcome if name == "set"}
    assert float(settings["timeout"]) == 60
    assert float(settings["one_way_sum"]) == pytest.approx(0.6)


def test_chance_delays_packets_in_both_directions_of_each_segment() -> None:
    noisy = describe_job(job(), dict.fromkeys(("client", "server", "sim"), DISK), "/disks", noise=0.0001)
    link = document(records(noisy), "sim")
    assert [link[way]["impairments"]["jitter"] for way in ("forward", "return")] == [0.0001, 0.0001]
    assert [link[way]["delay"] for way in ("forward", "return")] == [LINK.delay, LINK.delay]
    assert document(described(), "sim")["forward"]["impairments"]["jitter"] == 0


def over_boxes() -> list[tuple[str, tuple[str, ...]]]:
    """A download through qpep over two segments, its TCP controller BBR."""
    box = Middlebox(name="qpep", image="qpep", url="", version="", poses_as_server=True)
    spec = EndpointSpec(image="qpep", environment={"CCA": "bbr"})
    pair = job()
    requested = replace(
        pair,
        topology=Topology(link=LinkRecord(name="two", segments=pair.topology.link.segments * 2), middlebox=box),
        boxes=dict.fromkeys(BOXES, spec),
        controllers={"terminal": "bbr", "gateway": "bbr"},
        server_port=443,
        own_server=True,
    )
    names = ("client", "server", "sim", "ground", "terminal", "gateway")
    disks = {name: Disk(path=Path(f"/disks/{name}.erofs"), command=(f"/{name}",), environment={}) for name in names}
    return records(describe_job(requested, disks, "/disks"))


def test_middleboxes_stand_where_they_stand_in_lanes() -> None:
    outcome = over_boxes()
    of_kind = {kind: [fields for name, fields in outcome if name == kind] for kind in dict(outcome)}
    assert len(of_kind["cable"]) == 5 and len(of_kind["capture"]) == 6
    settings = {fields[0]: fields[1:] for fields in of_kind["namespace"]}
    forwarding = {role for role, values in settings.items() if "net.ipv4.ip_forward=1" in values}
    assert forwarding == {"terminal", "gateway"}
    processes = {fields[0]: fields for fields in of_kind["process"]}
    assert [processes[role][1] for role in ("terminal", "gateway", "ground")] == ["box", "box", "link"]
    assert {fields[0] for fields in of_kind["device"]} == {"terminal", "gateway"}
    binds = {fields[:2] for fields in of_kind["bind"]}
    assert {("terminal", "/keys"), ("gateway", "/keys"), ("terminal", "/certs"), ("gateway", "/certs")} <= binds
    assert not {("client", "/keys"), ("server", "/keys")} & binds
    seeds = [document(outcome, role)["seed"] for role in ("sim", "ground")]
    assert len(set(seeds)) == 2, "two segments lose different packets"
    assert of_kind["ready"] == [("tcp", "server", "", "443")]
    assert of_kind["listen"] == [("terminal", "57832")]


def test_routes_of_guests_are_those_of_lanes() -> None:
    """A record has the words of the command that a lane gives to `ip`."""
    outcome = {fields for name, fields in over_boxes() if name == "route"}
    assert ("terminal", "change", "193.167.0.0/24", "", "lan0", "bbr") in outcome
    assert ("gateway", "add", "193.167.100.0/24", "10.66.0.2", "", "bbr") in outcome
    nodes = ("client", "terminal", "sim", "gateway", "ground", "server")
    script = network_script(dict.fromkeys(nodes, 1), pairwise(nodes), {"terminal": "bbr", "gateway": "bbr"})
    for _, how, network, gateway, interface, controller in outcome:
        where = f"via {gateway}" if gateway else f"dev {interface}"
        assert f"route {how} {network} {where} congctl {controller}" in script


def test_only_the_seed_tells_two_iterations_apart() -> None:
    first, other = described(seed=3), described(seed=4)
    different = [(a, b) for a, b in zip(first, other, strict=True) if a != b]
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
    """The endpoint of that image is named, whichever it is."""
    about = {"config": {"User": declared}, "passwd": PASSWD, "group": GROUPS}
    for role in ("client", "server"):
        with pytest.raises(LaneError, match="is not in its /etc/") as caught:
            disk_of(Path("disk"), about, role)
        assert caught.value.code == f"{role}-not-started"


def test_a_report_that_was_cut_off_is_read_as_far_as_it_goes() -> None:
    report = read_report(
        "began 100.5\nstage server-ready 0.05\nready 1\nerror link-died - The simulator ended.\nerror other sim no\n"
        "process client started=1 ended=1 code=137 began=101.0 end=102.5 stopped=0 timed_out=1 flooded=0 printed=9\n"
    )
    assert (report.began, report.ready, report.done) == (100.5, True, None)
    assert report.stages == {"server ready": 0.05}
    assert report.error == {"code": "link-died", "message": "The simulator ended."}, "the first one counts"
    client = report.processes["client"]
    assert (client.code, client.timed_out, client.end - client.began) == (137, True, 1.5)


def test_certificates_follow_from_seed_and_time() -> None:
    def made(seed: int) -> dict[str, bytes]:
        return inputs.certificates(chain_length=3, seed=seed, now=plan_jobs.EPOCH).files()

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
    return plan_jobs.with_clock(run, clock_name)


def test_a_run_keeps_its_clock(tmp_path: Path) -> None:
    virtual = run_of("virtual")
    folder = RunFolder.create(tmp_path / "run", virtual)
    assert RunFolder.open(folder.path).run.clock == "virtual"
    assert plan_jobs.chosen_clock(None, folder) == "virtual"
    assert plan_jobs.chosen_clock(None, None) == "real"
    with pytest.raises(UsageError, match="can't be pooled"):
        plan_jobs.chosen_clock("real", folder)


def test_runs_of_two_clocks_are_compared_only_by_who_knows(catalog: Catalog) -> None:
    differing = differences(run_of("real", catalog), run_of("virtual", catalog))
    assert list(differing) == ["clock"]
    with pytest.raises(UsageError, match="--despite clock"):
        refuse(differing, frozenset())
    refuse(differing, frozenset({"clock"}))


def test_auto_gives_each_case_a_clock_of_its_own(catalog: Catalog) -> None:
    run = run_of("auto", catalog)
    assert {name: run.clock_of(name) for name in run.cases} == {
        "handshake": "virtual",
        "sat": "real",  # 20 Mbit/s: a slow stack's CPU limits it
        "satloss": "virtual",
    }
    jobs = [Job(server="s", client="c", case=name, iteration=1) for name in ("sat", "handshake", "satloss")]
    assert [(name, [job.case for job in part]) for name, part in run.parts_by_clock(jobs)] == [
        ("virtual", ["handshake", "satloss"]),
        ("real", ["sat"]),
    ]
    [sentence] = differences(run, run_of("virtual", catalog))["clock"]
    assert sentence.startswith("sat: real time before, virtual time after")
    busy = plan_jobs.with_clock(run_of("real", catalog), "auto", busy_host=True)
    assert {busy.clock_of(name) for name in run.cases} == {"virtual"}


def test_auto_runs_pairs_of_a_stack_whose_verdicts_differ_by_clock_in_real_time(
    catalog: Catalog, tmp_path: Path
) -> None:
    assert {name for name, stack in catalog.implementations.items() if stack.real_time} == {"kwik", "ngtcp2"}
    jobs = [Job(server=s, client=c, case="satloss", iteration=1) for s, c in (("kwik", "quinn"), ("quinn", "kwik"))]
    plan = replace(run_of("real", catalog), order=tuple(jobs))
    run = plan_jobs.with_clock(plan, "auto", stacks=catalog.implementations)
    assert [(name, [job.server for job in part]) for name, part in run.parts_by_clock(jobs)] == [
        ("virtual", ["quinn"]),
        ("real", ["kwik"]),
    ]
    busy = plan_jobs.with_clock(plan, "auto", stacks=catalog.implementations, busy_host=True)
    assert [name for name, _ in busy.parts_by_clock(jobs)] == ["virtual", "real"]
    before = plan_jobs.with_clock(plan, "auto")
    assert differences(before, run)["clock"] == ["kwik_quinn/satloss: virtual time before, real time after."]
    more = (*jobs, replace(jobs[0], client="aioquic"))
    wide = (
        plan_jobs.with_clock(replace(plan, order=more), "auto", stacks=known) for known in ({}, catalog.implementations)
    )
    assert differences(*wide)["clock"] == [
        "kwik_aioquic/satloss and 1 more cell: virtual time before, real time after."
    ]
    extended = extend_run(RunFolder.create(tmp_path / "run", before), run)
    assert [job.server for _, part in extended.parts_by_clock(jobs) for job in part] == ["kwik", "quinn"], (
        "a cell that a run has keeps its clock"
    )
    move = catalog.cases["connectionmigration"].record()
    ends = (("ngtcp2", "ngtcp2", move.name), ("ngtcp2", "quinn", move.name), ("ngtcp2", "ngtcp2", "handshake"))
    moves = tuple(Job(server=s, client=c, case=case, iteration=1) for s, c, case in ends)
    parts = plan_jobs.with_clock(
        replace(plan, cases=plan.cases | {move.name: move}, order=moves),
        "auto",
        stacks=catalog.implementations,
        busy_host=True,
    ).parts_by_clock(moves)
    assert dict(parts) == {"virtual": moves[1:], "real": moves[:1]}, "only one case of this client differs"
    virtual = plan_jobs.with_clock(plan, "virtual", stacks=catalog.implementations)
    assert [name for name, _ in virtual.parts_by_clock(jobs)] == ["virtual"]


def test_one_clock_for_all_cases_is_that_of_each(catalog: Catalog) -> None:
    assert {run_of("virtual", catalog).clock_of(name) for name in ("handshake", "sat")} == {"virtual"}
