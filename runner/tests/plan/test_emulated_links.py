"""emulated-links.json: what it says, and a sentence for each mistake in it."""

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.errors import UsageError
from runner.model.link import LinkChange, Outage
from runner.paths import ROOT
from runner.plan.links import EmulatedLinksFile, load_emulated_links

GOOD: dict[str, Any] = {
    "schema": 1,
    "links": {
        "alpine": {
            "segments": [
                {
                    "forward": {
                        "data_rate": 5e7,
                        "delay": 0.3,
                        "queue": {"bdp": 1},
                        "impairments": {
                            "jitter": 0.005,
                            "changes": [{"time": 1, "delay": 0.1, "data_rate": 1_000_000}],
                        },
                    },
                    "return": {"data_rate": 5_000_000, "delay": 0.3, "queue": {"packets": 20}, "loss": 0.01},
                    "impairments": {"outage": {"start": 1, "duration": 2}},
                }
            ],
            "source": "a tariff",
        }
    },
}

Change = Callable[[dict[str, Any]], object]


def _file(folder: Path, change: Change = lambda _: None) -> Path:
    document = copy.deepcopy(GOOD)
    change(document["links"]["alpine"]["segments"][0])
    path = folder / "emulated-links.json"
    path.write_text(json.dumps(document))
    return path


def test_a_file_becomes_links(tmp_path: Path) -> None:
    link = load_emulated_links(_file(tmp_path))["alpine"]
    [segment] = link.segments
    assert segment.forward.impairments.changes == (LinkChange(time=1.0, delay=0.1, data_rate=1_000_000),)
    assert segment.impairments.outage == Outage(start=1.0, duration=2.0)
    assert segment.return_.queue_packets == 20
    assert link.source == "a tariff"


def test_without_a_file_there_are_none(tmp_path: Path) -> None:
    assert load_emulated_links(tmp_path / "none.json") == {}


def test_the_example_is_right() -> None:
    assert load_emulated_links(ROOT / "emulated-links.example.json")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda link: link["forward"].pop("delay"), "forward.delay' is missing: write a number, without quotes."),
        (lambda link: link["forward"].update(data_rate=True), "[0].forward.data_rate' is true: write a whole number"),
        (lambda link: link["forward"].update(data_rate=2000.5), "data_rate' is 2000.5: write a whole number"),
        (lambda link: link["forward"].update(delay=math.nan), "segments[0].forward.delay' is NaN: write a finite"),
        (lambda link: link["forward"].update(queue={"bytes": 10**400}), "…: write a number with at most 18 digits"),
        (lambda link: link["impairments"]["outage"].update(start=True), "outage.start' is true: write a number"),
        (
            lambda link: link["forward"]["impairments"].update(gilbert_elliott=-1),
            "gilbert_elliott' is -1: write a list",
        ),
        (lambda link: link["forward"].update(dela=1), "forward.dela' is not known: did you mean delay?"),
        (
            lambda link: link["forward"]["impairments"].update(jiter=1),
            "forward.impairments.jiter' is not known: did you mean jitter?",
        ),
        (lambda link: link["forward"]["impairments"].update(jitter=100), "jitter is 0 to 60 (seconds), not 100."),
        (lambda link: link["forward"]["impairments"].update(loss_list=[[3, 2]]), "loss_list has the first and the"),
        (lambda link: link["forward"].update(queue={"bdp": 1, "packets": 3}), "exactly one of them, above 0."),
        (lambda link: link["forward"].update(queue=5), "forward.queue' is 5: write an object"),
        (lambda link: link["forward"].update(data_rate="20M"), 'is "20M": write a whole number, without quotes'),
        (lambda link: link["forward"].update(data_rate=2e12), "a data rate is 1000 to 10000000000 bit/s"),
        (lambda link: link["impairments"].update(rebinding={"what": "x", "first": 1}), "a NAT changes the client's"),
        (lambda link: link["impairments"]["outage"].update(durtion=3), "did you mean duration?"),
        (lambda link: link["forward"].update(queue={"bdp": 1e9}), "a queue has at most 1000000 packets"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(tmp_path: Path, change: Change, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_emulated_links(_file(tmp_path, change))
    assert sentence in str(caught.value) and "emulated-links.json, " in str(caught.value)


def test_the_schema_knows_every_impairment() -> None:
    fields = EmulatedLinksFile.model_json_schema(by_alias=True)["$defs"]["LinkImpairments"]["properties"]
    assert {"jitter", "gilbert_elliott", "changes"} <= fields.keys()
