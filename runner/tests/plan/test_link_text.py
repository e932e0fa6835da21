"""`--link rate=…`: what becomes of a text, and a sentence for each mistake in it."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import UsageError
from runner.model.link import LinkRecord
from runner.model.run import name_problem
from runner.plan.links import is_link_text, parse_link


def test_a_value_counts_for_both_directions_unless_there_are_two() -> None:
    [segment] = parse_link("rate=50M/5M,delay=300ms,loss=0.1%,queue=1bdp").segments
    assert (segment.forward.data_rate, segment.return_.data_rate) == (50_000_000, 5_000_000)
    assert segment.forward.delay == segment.return_.delay == 0.3
    assert segment.forward.loss == segment.return_.loss == 0.001
    assert segment.forward.queue_packets == segment.return_.queue_packets == 2500


def test_the_ground_is_a_second_segment() -> None:
    link = parse_link("rate=20M/5M,delay=250ms,jitter=5ms/0ms;rate=100M,delay=40ms")
    satellite, ground = link.segments
    assert (satellite.forward.impairments.jitter, satellite.return_.impairments.jitter) == (0.005, 0)
    assert ground.forward == ground.return_ and ground.forward.data_rate == 100_000_000
    assert link.rtt == pytest.approx(0.58)
    assert not link.is_clean and replace(link, segments=(ground,)).is_clean


@pytest.mark.parametrize(
    ("text", "packets"),
    [
        (",queue=0.5bdp", 83),
        (",queue=125p", 125),
        (",queue=750kB", 500),
        (",queue=1MiB", 699),
        ("", 167),  # one BDP
    ],
)
def test_units_of_a_queue(text: str, packets: int) -> None:
    assert parse_link(f"rate=1M,delay=1s{text}").satellite.forward.queue_packets == packets


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("rate=10M", "delay is missing: write it as rate="),
        ("rate=10X,delay=1ms", "'10X' is not a data rate in bit/s, such as 50M or 500k"),
        ("rate=0.0001k,delay=1ms", "is not a data rate"),
        ("rate=10M,delay=300", "'300' is not a time, such as 300ms or 0.3s"),
        ("rate=10M,dely=1ms,delay=1ms", "there is no key 'dely'. Did you mean delay?"),
        ("rate=10M,delay=1ms,loss=500%", "a loss is a fraction from 0 to 1, not 5"),
        ("rate=10M,delay=1ms,reorder=2", "reorder is 0 to 1 (fraction), not 2"),
        ("rate=10M,delay=1ms,jitter=61s", "jitter is 0 to 60 (seconds), not 61"),
        ("rate=10M,delay=1ms,burst=1.5", "'1.5' is not a number of packets"),
        ("rate=10M,delay=1ms,queue=0p", "exactly one of them, above 0"),
        ("rate=10M,delay=1ms,queue=2000000p", "a queue has at most 1000000 packets"),
        ("rate=10M/2M/1M,delay=1ms", "rate has one value, or FORWARD/RETURN"),
        ("rate=10,delay=1ms", "a data rate is 1000 to 10000000000 bit/s, not 10"),
        ("rate=1G,delay=100s", "a delay is 0 to 60 seconds, one way, not 100"),
        ("rate=1G,delay=1s,delay=2s", "'delay' is given twice"),
        ("name=A B,rate=10M,delay=1ms", "write one name, of at most 40 small letters"),
        ("name=a,rate=1M,delay=1ms;name=b,rate=1M,delay=1ms", "write one name"),
        ("rate=1M,delay=1ms;rate=1M,delay=1ms;rate=1M,delay=1ms", "one segment, or two"),
        ("rate=1M,delay=1ms;", "'' is not KEY=VALUE"),
        ("=", "'=' is not KEY=VALUE"),
        ("rate=nan,delay=1ms", "is not a data rate"),
        ("rate=1e400,delay=1ms", "is not a data rate"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_link(text)
    assert str(caught.value).startswith(f"--link '{text}': ") and sentence in str(caught.value)


@given(st.text(max_size=60))
def test_any_text_becomes_a_link_or_a_sentence(text: str) -> None:
    try:
        parse_link(f"rate={text}")
    except UsageError as error:
        assert str(error).endswith(".")


_VALUES = st.fixed_dictionaries(
    {"rate": st.integers(1000, 10**7), "delay": st.integers(0, 5000), "loss": st.integers(0, 10_000)},
    optional={"jitter": st.integers(0, 100), "corruption": st.integers(0, 10_000), "burst": st.integers(0, 9)},
)


def _text(values: dict[str, int]) -> str:
    spelled = {"rate": "{}", "delay": "{}ms", "loss": "{}e-4", "jitter": "{}ms", "corruption": "{}e-4", "burst": "{}"}
    return ",".join(f"{key}={spelled[key].format(value)}" for key, value in values.items())


def _parameters(link: LinkRecord) -> str:
    return json.dumps([str(segment) for segment in link.segments])


@given(_VALUES, _VALUES)
def test_two_links_have_two_names_which_can_be_folders(values: dict[str, int], other: dict[str, int]) -> None:
    first, second = parse_link(_text(values)), parse_link(_text(other))
    assert name_problem(first.name) is None and not set(first.name) & set("%,=+@_/ ")
    assert first.name != second.name or _parameters(first) == _parameters(second)


def test_one_link_has_one_name_however_it_is_spelled() -> None:
    names = {parse_link(text).name for text in ("rate=1M,delay=1s,loss=1%", "delay=1000ms,rate=1000k,loss=0.01")}
    assert names == {"1M-1000ms-loss0.01"}


def test_a_name_is_no_text() -> None:
    assert is_link_text("rate=1M,delay=1s") and not is_link_text("sat,geo")
