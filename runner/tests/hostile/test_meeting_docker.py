"""A real image meets the hostile peer in both roles, in a lane."""

from pathlib import Path

import pytest
from rich.console import Console

from runner.check import meeting
from runner.check.flight_verdicts import FAILED, PASSED
from runner.check.meeting import exit_code, meet_all
from runner.model.stack import Role
from runner.plan.options import StackOptions


@pytest.mark.docker
def test_an_image_meets_flights_in_both_roles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "LOGS", tmp_path)
    names = ("flood-pings", "unknown-frame-in-handshake", "new-token-empty", "h3-goaway-higher")
    options = StackOptions(cases=names, lanes="1", yes=True)
    (met,) = meet_all(options, {"aioquic": tuple(Role)}, out=Console(quiet=True), err=Console(quiet=True))
    verdicts = {(result.flight, result.role): result.verdict for result in met.results}
    assert verdicts == {
        ("flood-pings", "client"): PASSED,
        ("flood-pings", "server"): PASSED,
        ("unknown-frame-in-handshake", "client"): PASSED,
        ("unknown-frame-in-handshake", "server"): PASSED,
        ("new-token-empty", "client"): FAILED,
        ("h3-goaway-higher", "client"): FAILED,
        ("h3-goaway-higher", "server"): FAILED,
    }
    assert exit_code(met.results) == 1
    floods = [result.usage for result in met.results if result.flight == "flood-pings"]
    for usage in floods:
        assert usage is not None and usage.before > 1 << 20 and usage.most >= max(usage.after, default=0)
    assert (met.path / "hostile.json").is_file()
