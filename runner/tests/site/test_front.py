"""The front page, the page Tonight, and page, badge and feed of a stack, over nights with outcomes of this file."""

import re
from collections.abc import Mapping
from dataclasses import replace
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lab.run_folders import case, measured, run
from runner.compare.conditions import trust
from runner.model.result import Diagnosis, Finding, Outcome, Result
from runner.model.run import Job, Kind, NightRecord, NightState, Run, Stage
from runner.site import render
from runner.store.runs import RunFolder

BEGAN = 1.8e9
DAY = 86_400
STACKS = ("quinn", "aioquic", "quic-go")
ATOM = "{http://www.w3.org/2005/Atom}"
ITERATIONS = 5
Broken = Mapping[tuple[str, str], str]  # server, client → the role at fault for a failed `hs`: client, server, neither


def night(path: Path, number: int, broken: Broken, *, slow: str = "", error: str = "") -> RunFolder:
    """All pairs in a test case and in a measurement. `slow`: a server whose transfers take longer. `error`: a client
    whose jobs of the test case end as errors of the harness."""
    order = tuple(
        Job(server=server, client=client, case=name, iteration=iteration)
        for server in STACKS
        for client in STACKS
        for name, iterations in (("hs", 1), ("sat", ITERATIONS))
        for iteration in range(1, iterations + 1)
    )
    cases = {"hs": case("hs", Kind.TEST_CASE), "sat": case("sat", iterations=ITERATIONS)}
    record = replace(run(path.name, cases, order, started=BEGAN + number * DAY), clock="virtual")
    folder = RunFolder.create(path, _with_image(record, "quinn", "0.2" if slow == "quinn" else "0.1"))
    for job in order:
        folder.save_result(_result(job, broken, slow=slow, error=error))
    return folder


def _with_image(record: Run, name: str, version: str) -> Run:
    known = record.implementations[name]
    image = replace(known, version=version, image_id=f"sha256:{version.replace('.', '')}{'a' * 60}")
    return replace(record, implementations={**record.implementations, name: image})


def _result(job: Job, broken: Broken, *, slow: str, error: str) -> Result:
    if job.case == "sat":
        seconds = (9.0 if job.server == slow else 2.0 + STACKS.index(job.server) / 10) + job.iteration / 100
        late = Diagnosis(
            code="window-after-loss", sentence="The window stayed small.", start=1, end=8, packets=(70, 71)
        )
        sample = measured(8e6 / seconds, ttlb=seconds)
        return replace(
            Result.of(job, Outcome.SUCCEEDED), sample=sample, diagnoses=(late,) if job.server == slow else ()
        )
    if job.client == error:
        return Result.of(job, Outcome.ERROR, _finding("engine", "the engine was away"))
    if (role := broken.get((job.server, job.client))) is not None:
        return Result.of(
            job,
            Outcome.FAILED,
            replace(_finding("server-exit" if role == "server" else "timeout", "no end"), role=role, packets=(12,)),
        )
    return Result.of(job, Outcome.SUCCEEDED)


def _finding(code: str, actual: str) -> Finding:
    return Finding(
        code=code, requirement="It ends.", expected="an end", actual=actual, times=(0.031,), vantage="client"
    )


def words(path: Path) -> str:
    """The text of a page in one line."""
    return " ".join(re.sub(r"<[^>]+>", " ", path.read_text()).replace("\u202f", " ").replace("\u00a0", " ").split())


def row(page: str, stack: str) -> str:
    """The row of a stack in the table of the front page."""
    match = re.search(rf'<tr id="{re.escape(stack)}">.*?</tr>', page, re.DOTALL)
    assert match is not None
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", match[0])).replace("\u00a0", " ").split())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five nights: all green; quinn breaks as a server; a night without a verdict on it; broken still; and quinn is
    slow, too, while a failure of quic-go with aioquic is nobody's."""
    logs = tmp_path_factory.mktemp("nights")
    broken: Broken = {("quinn", "aioquic"): "server"}
    folders = [
        night(logs / "n-0", 0, {}),
        night(logs / "n-1", 1, broken),
        night(logs / "n-2", 2, {}, error="aioquic"),
        night(logs / "n-3", 3, broken),
        night(logs / "n-4", 4, {**broken, ("quic-go", "aioquic"): ""}, slow="quinn"),
    ]
    render(folders, logs / "site")
    return logs / "site"


def test_a_stack_is_red_by_its_own_fault_and_since_the_first_night_of_it(site: Path) -> None:
    """In the third night the cell that is broken was an error of the harness: it says nothing, so red goes on."""
    page = (site / "index.html").read_text()
    assert row(page, "quinn") == (
        "quinn ✗ red since 2027-01-16 08:00 UTC, green before 1 of 12 cells failed by its own fault: server-exit (1)"
    )


def test_failures_that_no_finding_explains_are_unclear_and_a_peers_fault_leaves_a_stack_green(
    site: Path, tmp_path: Path
) -> None:
    page = (site / "index.html").read_text()
    assert row(page, "quic-go").startswith("quic-go ≈ unclear since 2027-01-19 08:00 UTC, green before")
    assert "1 of 12 cells failed, and no finding names the endpoint at fault: timeout (1)" in row(page, "quic-go")
    render([night(tmp_path / "n", 0, {("quinn", "aioquic"): "server"})], tmp_path / "site")
    peer = row((tmp_path / "site/index.html").read_text(), "aioquic")
    assert peer.startswith("aioquic ✓ green since 2027-01-15 08:00 UTC, the first run of this plan")
    assert peer.endswith("1 of 12 cells failed by its peer's fault: server-exit (1)")


def test_a_later_finding_explains_a_failure_that_the_client_shows_first(tmp_path: Path) -> None:
    """`timeout` leaves the fault open; the server's packets prove it."""
    folder = night(tmp_path / "n", 0, {("quinn", "aioquic"): ""})
    [failed] = [result for result in folder.results().values() if result.outcome is Outcome.FAILED]
    proof = replace(_finding("black-hole-not-noticed", "packets of 1469 B"), role="server")
    folder.save_result(replace(failed, findings=(*failed.findings, proof)))
    render([folder], tmp_path / "site")
    page = (tmp_path / "site/index.html").read_text()
    assert row(page, "quinn").endswith("1 of 12 cells failed by its own fault: black-hole-not-noticed (1)")
    assert row(page, "aioquic").endswith("1 of 12 cells failed by its peer's fault: black-hole-not-noticed (1)")


def test_a_file_that_differs_is_by_the_fault_of_the_role_that_the_judge_names(tmp_path: Path) -> None:
    """No role: the packets do not show it, and that the server fails with every client says no more."""
    folder = night(tmp_path / "n", 0, {})
    for client in STACKS:
        for server, role in (("quinn", ""), ("aioquic", "client")):
            finding = replace(_finding("files-differ", "it is missing"), role=role)
            job = Job(server=server, client=client, case="hs", iteration=1)
            folder.save_result(Result.of(job, Outcome.FAILED, finding))
    render([folder], tmp_path / "site")
    page = (tmp_path / "site/index.html").read_text()
    assert "4 failed, and no finding names the endpoint at fault: files-differ (4)" in row(page, "quinn")
    assert "1 of 12 cells failed by its own fault: files-differ (1); 1 failed, and" in row(page, "quic-go")


def test_what_changed_is_grouped_and_has_cause_and_packets(site: Path) -> None:
    text = words(site / "index.html")
    assert (
        "▼ worse quinn as server, sat, 3 cells aioquic → quinn: delivery time 2.030 s → 9.030 s (+345 %) "
        "window-after-loss: The window stayed small (1.00 to 8.00 s; packets 70, 71); "
        "new image of quinn: 0.1 (image 01aaaaaaaaaa) → 0.2 (image 02aaaaaaaaaa)"
    ) in text
    assert "▼ worse aioquic → quic-go, hs outcome succeeded → failed timeout: no end; packet 12 at 0.031 s" in text


def test_the_best_server_over_an_orbit_has_its_interval(site: Path) -> None:
    text = words(site / "index.html")
    assert "GEO aioquic : 2.13 s range" in text
    assert "median delivery time in sat of n-4, 3 servers." in text
    assert "LEO" not in text


def test_the_best_server_is_of_the_widest_measurement_and_not_of_a_few_that_ran_later(tmp_path: Path) -> None:
    wide = night(tmp_path / "wide", 0, {}, slow="aioquic")
    again = tuple(job for job in wide.run.order if job.case == "sat" and job.server != "quinn")
    narrow = replace(wide.run, name="narrow", order=again, started_unix_s=BEGAN + DAY)
    folder = RunFolder.create(tmp_path / "narrow", narrow)
    for job in again:
        folder.save_result(_result(job, {}, slow="aioquic", error=""))
    render([wide, folder], tmp_path / "site")
    assert "GEO quinn : 2.03 s" in (text := words(tmp_path / "site/index.html"))
    assert "of wide, 3 servers" in text


def test_a_stack_has_a_page_a_badge_and_a_feed_at_an_address_that_stays(site: Path) -> None:
    page = (site / "latest/quinn/index.html").read_text()
    assert 'id="server-aioquic-hs"' in page
    assert 'href="../../n-4/quinn_aioquic/hs.html#findings"' in page
    badge = (site / "latest/quinn/badge.svg").read_text()
    assert "quinn: bentpipe: red, 11 of 12 cells" in badge
    feed = ElementTree.fromstring((site / "latest/quinn/atom.xml").read_bytes())
    titles = [entry.findtext(f"{ATOM}title") for entry in feed.findall(f"{ATOM}entry")]
    assert titles == [
        "quinn: red, n-4",
        "quinn: red, green before, n-1",
        "quinn: green, n-0",
    ]
    for link in feed.iter(f"{ATOM}link"):
        assert (site / "latest/quinn" / link.attrib["href"]).is_file()


def test_a_feed_of_a_stack_is_silent_in_nights_without_news(tmp_path: Path) -> None:
    folders = [night(tmp_path / f"n-{number}", number, {}) for number in range(4)]
    render(folders, tmp_path / "site")
    feed = ElementTree.fromstring((tmp_path / "site/latest/quinn/atom.xml").read_bytes())
    assert [entry.findtext(f"{ATOM}title") for entry in feed.findall(f"{ATOM}entry")] == ["quinn: green, n-0"]
    row_of_quinn = row((tmp_path / "site/index.html").read_text(), "quinn")
    assert row_of_quinn == "quinn ✓ green since 2027-01-15 08:00 UTC, the first run of this plan all 12 cells succeeded"


def test_a_plan_that_no_longer_runs_is_history(tmp_path: Path) -> None:
    old = night(tmp_path / "old", 0, {("quinn", "aioquic"): "server"})
    only_sat = tuple(job for job in old.run.order if job.case == "sat" and job.server == "quic-go")
    new = RunFolder.create(
        tmp_path / "new", replace(old.run, name="new", order=only_sat, started_unix_s=BEGAN + 8 * DAY)
    )
    for job in only_sat:
        new.save_result(_result(job, {}, slow="", error=""))
    render([old, new], tmp_path / "site")
    page = (tmp_path / "site/index.html").read_text()
    assert row(page, "quinn").startswith("quinn ✓ green")
    assert ">old<" not in page


def test_a_run_of_a_few_cells_replaces_these_and_hides_no_other(tmp_path: Path) -> None:
    wide = night(tmp_path / "wide", 0, {("quinn", "aioquic"): "server", ("quic-go", "quinn"): "server"})
    again = tuple(job for job in wide.run.order if job.case == "hs" and job.server == "quic-go")
    narrow = RunFolder.create(
        tmp_path / "narrow", replace(wide.run, name="narrow", order=again, started_unix_s=BEGAN + DAY)
    )
    for job in again:
        narrow.save_result(_result(job, {}, slow="", error=""))
    render([wide, narrow], tmp_path / "site")
    page = (tmp_path / "site/index.html").read_text()
    assert row(page, "quinn").startswith(
        "quinn ✗ red since 2027-01-15 08:00 UTC, the first run of this plan 1 of 12 cells"
    )
    assert row(page, "quic-go") == (
        "quic-go ✓ green since 2027-01-16 08:00 UTC, the first run of this plan all 12 cells succeeded"
    )


def test_a_run_with_an_error_can_be_trusted_except_for_that_job(tmp_path: Path) -> None:
    folder = night(tmp_path / "n-0", 0, {})
    job = Job(server="quinn", client="aioquic", case="hs", iteration=1)
    folder.save_result(Result.of(job, Outcome.ERROR, _finding("engine", "the engine was away")))
    render([folder], tmp_path / "site")
    text = words(tmp_path / "site/index.html")
    told = "can be trusted except for 1 job"
    assert f"Trust : this run {told}: 54 of 54 jobs done, 1 ended as an error (engine 1)" in text
    assert f"n-0 ✓ {told}" in text


@pytest.mark.parametrize(
    ("planned", "errors", "verdict"),
    [(20, 0, "can be trusted"), (30, 0, "is not complete"), (20, 2, "is doubtful"), (30, 2, "is doubtful")],
)
def test_an_interrupted_run_is_not_complete_and_one_with_many_errors_is_doubtful(
    planned: int, errors: int, verdict: str
) -> None:
    jobs = [Job(server="quinn", client="aioquic", case="hs", iteration=number) for number in range(1, 21)]
    error = _finding("engine", "the engine was away")
    results = [
        *(Result.of(job, Outcome.ERROR, error) for job in jobs[:errors]),
        *(Result.of(job, Outcome.SUCCEEDED) for job in jobs[errors:]),
    ]
    assert trust(planned, results).verdict == verdict


def test_tonight_says_what_changed_is_new_was_disturbed_and_can_be_trusted(tmp_path: Path) -> None:
    folders = [
        night(tmp_path / "lab-all-a", 0, {}),
        night(tmp_path / "lab-all-b", 1, {}, slow="quinn", error="aioquic"),
    ]
    record = NightRecord(
        stamp="b",
        began_unix_s=BEGAN + DAY,
        ended_unix_s=BEGAN + DAY + 90,
        stages=(
            Stage(name="build", state=NightState.FAILED, seconds=1.0, message="exit code 1: no space"),
            Stage(name="run all", state=NightState.DONE, seconds=80.0),
            Stage(name="run more", state=NightState.LEFT_OUT, seconds=0.0, message="no time was left"),
        ),
    )
    render(folders, tmp_path / "site", nights={"lab": record})
    text = words(tmp_path / "site/tonight.html")
    assert "Tonight: lab ✗ is doubtful" in text
    assert "Run more has no result." in text
    assert "✗ build failed: exit code 1: no space" in text
    assert "lab-all-b ✗ is doubtful begun 2027-01-16 08:00 UTC 54 of 54 jobs done, 3 ended as errors (engine 3)" in text
    assert "▼ worse quinn as server, sat, 3 cells" in text
    assert "quinn: 0.1 (image 01aaaaaaaaaa) → 0.2 (image 02aaaaaaaaaa)" in text
    assert "cause engine, in 3 cells" in text
    assert "3 jobs ended as error engine, first aioquic → aioquic, hs: the engine was away" in text
    assert 'href="tonight.html"' in (tmp_path / "site/index.html").read_text()
    render(folders, tmp_path / "site")
    assert not (tmp_path / "site/tonight.html").exists()


def test_the_front_page_has_the_matrix_of_the_newest_run(tmp_path: Path) -> None:
    folder = night(tmp_path / "n1", 1, {("quinn", "aioquic"): "server"}, error="quic-go")
    rule = Finding(code="rfc9000-12.3-number-reused", requirement="r", expected="e", actual="a", role="server")
    job = Job(server="aioquic", client="aioquic", case="hs", iteration=1)
    folder.save_result(replace(folder.results()[job], violations=(rule,)))
    render([folder], tmp_path / "site")
    page = (tmp_path / "site" / "index.html").read_text()
    (matrix,) = re.findall(r'<table class="grid">.*?</table>', page, re.DOTALL)
    rows = {
        re.findall(r'<th scope="row">(.*?)</th>', row)[0]: [
            unescape(re.sub(r"<[^>]+>", " ", cell)).split() for cell in re.findall(r"<td>(.*?)</td>", row, re.DOTALL)
        ]
        for row in matrix.split("<tr>")[2:]
    }
    assert re.findall(r"<span>(.*?)</span></th>", matrix) == list(STACKS)
    assert rows["quinn"] == [["✓", "1", "2.03"], ["✗", "0/1", "2.03"], ["2.03"]]
    assert rows["aioquic"][1] == ["✓", "1", "§", "2.13"]
    for href in re.findall(r'<td><a href="([^"]+)"', matrix):
        assert (tmp_path / "site" / href).is_file()
