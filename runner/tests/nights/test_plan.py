"""night.json: what is accepted, and the one sentence for each mistake."""

import json
from pathlib import Path
from typing import Any

import pytest

from runner.errors import UsageError
from runner.nights.night import load_night
from runner.paths import ROOT

RUN = {"name": "sat", "options": "--server quinn --case sat --iterations 2"}


def written(folder: Path, **fields: Any) -> Path:
    path = folder / "night.json"
    path.write_text(json.dumps({"schema": 1, "runs": [RUN]} | fields))
    return path


def test_the_example_is_a_night() -> None:
    night = load_night(ROOT / "night.example.json")
    assert night.at == "01:00"
    assert night.runs[1].arguments[-4:] == ("--iterations", "10", "--lanes", "auto")
    assert night.run_name(night.runs[1], "2026-11-23T0100") == "night-sat-2026-11-23T0100"
    assert [recipient.when for recipient in night.tell] == ["changed", "always"]


def test_a_run_of_the_night_may_have_workers(tmp_path: Path) -> None:
    path = written(tmp_path, runs=[RUN | {"on": "tls://runner.example:8786"}, RUN | {"name": "here"}])
    there, here = load_night(path).runs
    assert there.arguments[-2:] == ("--on", "tls://runner.example:8786")
    assert "--on" not in here.arguments


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"runs": []}, "field 'runs'"),
        ({"at": "25:00"}, "write a time of day such as 01:30"),
        ({"name": "../x"}, "can't be a name"),
        ({"runs": [RUN, RUN]}, "two runs are called 'sat'"),
        ({"runs": [RUN | {"options": "--case 'sat"}]}, "close the quotation"),
        ({"runs": [RUN | {"options": "--run mine"}]}, "the night sets --run itself"),
        ({"longest": 0}, "field 'longest'"),
        ({"keep": {"disk": -1}}, "field 'keep.disk'"),
        ({"keep": {"captrues": 3}}, "did you mean captures?"),
        ({"tell": [{}]}, "name either a webhook or a mail address"),
        ({"tell": [{"webhook": "file:///etc/passwd"}]}, "is not a URL"),
        ({"tell": [{"mail": "nobody"}]}, "is not a mail address"),
        ({"schema": 2}, "field 'schema'"),
    ],
)
def test_a_mistake_gets_one_sentence(tmp_path: Path, fields: dict[str, Any], sentence: str) -> None:
    path = written(tmp_path, **fields)
    with pytest.raises(UsageError) as refused:
        load_night(path)
    assert sentence in str(refused.value)
    assert str(path) in str(refused.value)


def test_a_missing_file_names_the_example(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"copy night\.example\.json"):
        load_night(tmp_path / "night.json")
