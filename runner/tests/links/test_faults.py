"""Faults of a real link, caused on purpose during a transfer: no job may be lost, nothing may stay on the host."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import pytest

from lab.testbed.hosts import Host, free_number
from runner.errors import LaneError, SetupError
from runner.model.result import Outcome, Result
from runner.paths import LEDGER, ROOT
from runner.places.links.hosts import HOST_LOST
from runner.places.links.link_experiment import LEASE_SECONDS
from runner.places.links.real_links import FIND_BYTES, Ledger, expected_volume
from runner.plan.catalog import Catalog
from runner.store.runs import RunFolder
from runner.tests.links.jobs import FORWARD_RATE, RETURN_RATE, STACK, Work, link_to, working
from runner.tests.links.satellite import INTERFACE, Satellite
from runner.tests.links.sky import LINK, write_links
from runner.tests.links.test_real_link import _parameters, images  # noqa: F401 - a fixture
from runner.units import format_size

pytestmark = [pytest.mark.docker, pytest.mark.slow]

CASE = "transfer"  # 10 MiB take at least 8 s over the link


@pytest.fixture(scope="module")
def sky(remote_host: Host, catalog: Catalog, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Work]:
    """A satellite link to a host, open for transfers."""
    satellite = Satellite(remote_host, None, remote_host.number)
    try:
        satellite.open(_parameters(FORWARD_RATE), _parameters(RETURN_RATE))
        link = link_to(remote_host, name="sky", interface=INTERFACE)
        with working(catalog, tmp_path_factory.mktemp("sky"), link, cases=(CASE,)) as work:
            yield work
    finally:
        satellite.close()


def _broken(work: Work, host: Host, folder: Path, break_it: Callable[[], object]) -> Result | LaneError:
    """Run a job, break something while its client runs; how the job ended."""
    ended: list[Result | LaneError] = []

    def run() -> None:
        try:
            ended.append(Work(work.run, work.catalog, work.links, folder, []).do(work.run.order[0])[0])
        except LaneError as error:
            ended.append(error)

    job = threading.Thread(target=run)
    job.start()
    deadline = time.monotonic() + 60
    while not any(name.endswith("client-endpoint") and state == "running" for name, state in host.states()):
        assert time.monotonic() < deadline, "the client never ran"
        time.sleep(0.2)
    time.sleep(2.0)  # until the transfer is running
    break_it()
    job.join(300)
    assert ended, "the job never ended"
    return ended[0]


def _clean(host: Host, *, within: float) -> None:
    deadline = time.monotonic() + within
    while left := host.containers():
        assert time.monotonic() < deadline, left
        time.sleep(1.0)


def test_a_job_survives_the_loss_of_ssh(sky: Work, remote_host: Host, tmp_path: Path) -> None:
    result = _broken(sky, remote_host, tmp_path, remote_host.restart_ssh)
    assert isinstance(result, Result)
    assert (result.outcome, result.findings) == (Outcome.SUCCEEDED, ())
    _clean(remote_host, within=5)


@pytest.mark.parametrize("break_it", [Host.restart_engine, Host.reboot])
def test_a_restart_of_the_host_is_no_failure_of_the_client(
    sky: Work, remote_host: Host, tmp_path: Path, break_it: Callable[[Host], None]
) -> None:
    result = _broken(sky, remote_host, tmp_path, lambda: break_it(remote_host))
    if isinstance(result, Result):
        assert result.outcome is Outcome.ERROR, result.findings
        outcome = result.findings[0]
        assert outcome.code != "side-died" or "was Docker restarted?" in outcome.actual, outcome
    _clean(remote_host, within=LEASE_SECONDS + 30)
    again, _ = Work(sky.run, sky.catalog, sky.links, tmp_path / "again", []).do(sky.run.order[0])
    assert again.outcome is Outcome.SUCCEEDED, again.findings


def test_another_host_key_in_mid_job_is_told_and_the_host_cleans_itself(
    sky: Work, remote_host: Host, tmp_path: Path
) -> None:
    def pretend() -> None:
        remote_host.stop_ssh()
        remote_host.start_ssh(host_key="other_host_key")

    try:
        ended = _broken(sky, remote_host, tmp_path, pretend)
        assert isinstance(ended, Result)
        assert (ended.outcome, ended.findings[0].code) == (Outcome.ERROR, HOST_LOST)
        assert "differs from the key in links.json" in ended.findings[0].actual
        _clean(remote_host, within=LEASE_SECONDS + 30)
    finally:
        remote_host.stop_ssh()
        remote_host.start_ssh()


def test_a_full_disk_is_told_and_no_job_is_lost(catalog: Catalog, tmp_path: Path) -> None:
    host = Host(tmp_path, free_number(), disk=1_200_000_000)
    try:
        host.open()
        host.fill_disk()
        with (
            pytest.raises(SetupError, match=r"can't be sent to .*no space left.*: make space on it, then run again"),
            working(catalog, tmp_path / "full", link_to(host), cases=("handshake",)),
        ):
            pass
        host.free_disk()
        with working(catalog, tmp_path, link_to(host), cases=("handshake",)) as work:
            job = work.run.order[0]
            host.fill_disk()
            try:
                result, _ = work.do(job)
                assert result.outcome is Outcome.ERROR, result.findings
                text = result.findings[0].actual
            except LaneError as error:
                text = str(error)
            assert re.search("no space left|the disk of .* is full", text.lower()), text
            host.free_disk()
            again, _ = Work(work.run, catalog, work.links, tmp_path / "again", []).do(job)
            assert again.outcome is Outcome.SUCCEEDED, again.findings
        assert host.containers() == []
    finally:
        host.close()


class Command:
    """`./bentpipe run` over the management link of a host, in a run folder of its own."""

    def __init__(self, host: Host, folder: Path, *, budget: int | None = None) -> None:
        """`budget`: of a day, in bytes."""
        self._host, self.run, self.links = host, folder / "run", folder / "links.json"
        rates = {"forward_rate": FORWARD_RATE, "return_rate": RETURN_RATE}
        write_links(self.links, host, interface="mgmt0", **rates, budget_per_day=budget)
        self.words = [sys.executable, "-m", "runner", "run", "--links", str(self.links), "--run", str(self.run)]

    def begin(self, *requested: str) -> subprocess.Popen[str]:
        """Start it; return when its first job is under way."""
        words = [*self.words, "--link", LINK, "--server", STACK, "--client", STACK, *requested]
        first = subprocess.Popen(words, cwd=ROOT, start_new_session=True, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 300
        while not any("client-monitor" in name for name in self._host.containers()):
            assert first.poll() is None, "the runner ended"
            assert time.monotonic() < deadline, "no job began"
            time.sleep(0.2)
        return first

    def go_on(self) -> None:
        """The same command again: at its end the two jobs of the run have succeeded."""
        subprocess.run(self.words, cwd=ROOT, check=True, timeout=400)
        results = RunFolder.open(self.run).results()
        assert [result.outcome for result in results.values()] == [Outcome.SUCCEEDED] * 2
        assert self._host.containers() == []


def test_a_killed_runner_leaves_nothing_and_its_run_goes_on(remote_host: Host, tmp_path: Path) -> None:
    command = Command(remote_host, tmp_path)
    first = command.begin("--case", "transfer,handshake")
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    _clean(remote_host, within=LEASE_SECONDS + 30)
    command.go_on()


def test_a_killed_runner_has_paid_for_its_job(remote_host: Host, catalog: Catalog, tmp_path: Path) -> None:
    job = expected_volume(link_to(remote_host), catalog.cases[CASE].record())
    ledger, today = Ledger(LEDGER), date.today()
    before = ledger.spent(LINK, today=today)[0]
    command = Command(remote_host, tmp_path, budget=before + 2 * FIND_BYTES + job * 3 // 2)
    first = command.begin("--case", CASE)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    assert ledger.spent(LINK, today=today)[0] == before + FIND_BYTES + job
    second = subprocess.run(command.words, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert second.returncode == 3, second.stderr
    assert f"{LINK}: {format_size(before + 2 * FIND_BYTES + job)} of the" in " ".join(second.stderr.split())
    _clean(remote_host, within=LEASE_SECONDS + 30)  # the second run leaves the job of the first to its watchdog


def test_a_key_that_is_refused_in_mid_job_ends_the_run_until_it_is_fixed(remote_host: Host, tmp_path: Path) -> None:
    command = Command(remote_host, tmp_path)
    first = command.begin("--case", "transfer,handshake")
    try:
        remote_host.authorize("other_key")
        remote_host.stop_ssh()
        remote_host.start_ssh()
        message = first.communicate(timeout=120)[1]
        _clean(remote_host, within=LEASE_SECONDS + 30)
    finally:
        remote_host.authorize("key")
    assert first.returncode == 3
    text = " ".join(message.split())
    assert "does not accept the key in links.json: add its public key to ~measure/.ssh/authorized_keys" in text
    assert "To go on: ./bentpipe run --run" in text
    assert RunFolder.open(command.run).results() == {}
    command.go_on()
