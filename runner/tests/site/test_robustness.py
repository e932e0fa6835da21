"""The page with what stacks accept from the hostile peer."""

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

from runner.check.flight_verdicts import FAILED, PASSED, UNSUPPORTED, FlightResult, FloodCost
from runner.site.site import newest_results, reports, robustness
from runner.site.writer import _environment

_FLIGHTS = {
    "h3-goaway-higher": {
        "section": "RFC 9114 §5.2",
        "must": "H3_ID_ERROR <b>",
        "level": "MUST",
        "sent": "send: goaway",
    },
    "unknown-frame": {"section": "RFC 9000 §12.4", "must": "FRAME_ENCODING_ERROR", "level": "MUST", "sent": "send: x"},
}


def _store(folder: Path, stack: str, *results: FlightResult) -> None:
    folder.mkdir(parents=True)
    content = {"stack": stack, "flights": _FLIGHTS, "results": [asdict(result) for result in results]}
    (folder / "hostile.json").write_text(json.dumps(content))


def test_the_page_has_a_column_for_each_role_and_every_failure_with_its_packets(tmp_path: Path) -> None:
    good = FlightResult(flight="unknown-frame", role="server", verdict=PASSED, seen="CONNECTION_CLOSE", sent=(3,))
    bad = FlightResult(
        flight="h3-goaway-higher", role="client", verdict=FAILED, seen="continued", sent=(7,), job="a/b/1"
    )
    _store(tmp_path / "one", "quick", good, bad)
    # A server alone: its roles differ from those of the first stack.
    none = FlightResult(flight="unknown-frame", role="client", verdict=UNSUPPORTED, seen="exit code 127")
    _store(tmp_path / "three", "server", good, none)
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "hostile.json").write_text("{")
    context = robustness(newest_results(tmp_path))
    assert context["columns"] == [("quick", "client"), ("quick", "server"), ("server", "server")]
    assert context["totals"] == ["0/1", "1/1", "1/1"]
    assert [rfc for rfc, _ in context["groups"]] == ["RFC 9000", "RFC 9114"]
    places = {"root": "", "base": "", "here": "", "folder": "run", "navigation": []}
    run = SimpleNamespace(bentpipe_version="1")
    text = _environment().get_template("robustness.html").render({**places, "run": run, **context})
    assert "H3_ID_ERROR &lt;b&gt;" in text and "one/a/b/1" in text and "✗" in text and "✓" in text
    assert 'href="#quick-client-h3-goaway-higher"' in text and 'id="quick-client-h3-goaway-higher"' in text
    assert "frame.number in {7}" in text and 'data-section="RFC 9114 §5.2"' in text


def test_the_page_has_memory_and_cpu_time_of_floods(tmp_path: Path) -> None:
    usage = FloodCost(before=5 << 20, most=9 << 20, after=(6 << 20, 7 << 20), cpu_s=0.5, datagrams=200, sent=90_000)
    flood = FlightResult(flight="unknown-frame", role="server", verdict=PASSED, seen="closed", usage=usage)
    _store(tmp_path / "one", "quick", flood)
    damaged = json.loads((tmp_path / "one" / "hostile.json").read_text())
    damaged["results"] += [{**damaged["results"][0], "usage": {"before": "x"}}, "no result"]
    (tmp_path / "one" / "hostile.json").write_text(json.dumps(damaged))
    context = robustness(newest_results(tmp_path))
    assert context["measured"] == [("unknown-frame", "quick", "server", ["5", "9", "6 → 7", "0.50", "200", "90"])]
    places = {"root": "", "base": "", "here": "", "folder": "run", "navigation": []}
    run = SimpleNamespace(bentpipe_version="1")
    text = _environment().get_template("robustness.html").render({**places, "run": run, **context})
    assert "<td>6 → 7</td>" in text


def test_the_newest_results_of_a_stack_count(tmp_path: Path) -> None:
    _store(tmp_path / "b", "quick", FlightResult(flight="unknown-frame", role="server", verdict=FAILED, seen="old"))
    _store(tmp_path / "a", "quick", FlightResult(flight="unknown-frame", role="server", verdict=PASSED, seen="new"))
    assert newest_results(tmp_path)["quick"]["results"][0]["seen"] == "new"


def test_a_report_of_a_stack_with_a_strange_name_is_no_file(tmp_path: Path) -> None:
    for folder, stack in (("one", "quick"), ("two", "../quick")):
        _store(tmp_path / folder, stack)
        (tmp_path / folder / "hostile.md").write_text("# report")
    assert reports(newest_results(tmp_path)) == {"quick.md": b"# report"}
