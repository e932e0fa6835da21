import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from runner.errors import SetupError, UsageError
from runner.model.run import ClientKind
from runner.model.stack import KERNEL_CONTROLLERS, Role
from runner.paths import ROOT
from runner.plan.catalog import Catalog, Knob, load_cases, load_catalog
from runner.plan.choice import named_implementations


def test_the_shipped_catalogue_is_valid() -> None:
    stacks = load_catalog().implementations
    assert {"quic-go", "quinn", "aioquic"} <= set(stacks)
    for name in ("quic-go", "quinn", "aioquic"):
        assert stacks[name].claims(Role.CLIENT, "transfer")
        assert not stacks[name].claims(Role.CLIENT, "no-such-case")


ENTRY = {"image": "x/y", "url": "https://example.org", "roles": ["client"]}


def _catalogue(path: Path, **entries: dict[str, object]) -> Catalog:
    path.write_text(
        json.dumps({"schema": 1, "implementations": {name: ENTRY | more for name, more in entries.items()}})
    )
    return load_catalog(path)


def test_stacks_that_are_built_come_first(tmp_path: Path) -> None:
    catalogue = _catalogue(tmp_path / "i.json", published={}, built={"build": "b"}, other={"withdrawn": True})
    mine = [name for name in catalogue.implementations if name in ("built", "published", "other")]
    assert mine == ["built", "published", "other"]
    assert [catalogue.implementations[name].withdrawn for name in mine] == [False, False, True]


def test_a_file_adds_stacks_to_the_list_and_replaces_those_that_it_names(tmp_path: Path) -> None:
    catalogue = _catalogue(tmp_path / "i.json", mine={"url": "https://example.org"}, quinn={"url": "https://fork.org"})
    shipped = load_catalog().implementations
    assert set(catalogue.implementations) == {*shipped, "mine"}
    assert catalogue.implementations["quinn"].url == "https://fork.org" != shipped["quinn"].url
    assert catalogue.implementations["quic-go"] == shipped["quic-go"]


def test_absent_stack_is_left_out_and_refused_by_name(tmp_path: Path) -> None:
    catalogue = replace(
        _catalogue(tmp_path / "i.json", here={}, away={}), absent={"away": "The image of away is not pulled."}
    )
    assert {"here", "quinn"} <= set(named_implementations(catalogue, (), Role.CLIENT))
    assert "away" not in named_implementations(catalogue, (), Role.CLIENT)
    assert named_implementations(catalogue, ("here",), Role.CLIENT) == ("here",)
    with pytest.raises(SetupError, match="The image of away is not pulled"):
        named_implementations(catalogue, ("here,away",), Role.CLIENT)


def test_stacks_over_tcp_run_by_name_alone(tmp_path: Path) -> None:
    catalogue = _catalogue(tmp_path / "i.json", both={"speaks": ["h3", "h2"]}, tcp={"speaks": ["h2", "http/1.1"]})
    chosen = named_implementations(catalogue, (), Role.CLIENT)
    assert "both" in chosen
    assert not [name for name in chosen if catalogue.implementations[name].is_over_tcp]
    assert named_implementations(catalogue, ("tcp",), Role.CLIENT) == ("tcp",)


def test_an_entry_like_another_has_its_image_and_says_what_differs(tmp_path: Path) -> None:
    entries: dict[str, dict[str, object]] = {"web": {"version": "1.2"}, "web+h2": {"like": "web", "speaks": ["h2"]}}
    catalogue = _catalogue(tmp_path / "i.json", **entries)
    web, tcp = catalogue.implementations["web"], catalogue.implementations["web+h2"]
    assert (tcp.image, tcp.url, tcp.version, tcp.roles) == (web.image, web.url, web.version, web.roles)
    assert (tcp.speaks, web.speaks) == (("h2",), ("hq-interop", "h3"))


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ({"like": "nobody"}, "mine is like 'nobody', which is not an entry of this file with its own image"),
        ({"like": "mine"}, "mine is like 'mine', which is not an entry"),
        ({"alpn": ["h3"]}, "field 'implementations.mine.alpn' is not known: did you mean speaks?"),
        ({"speaks": ["h4"]}, "field 'implementations.mine.speaks[0]' is \"h4\""),
    ],
)
def test_a_mistake_about_protocols_is_told(tmp_path: Path, entry: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        _catalogue(tmp_path / "i.json", mine=entry)
    assert sentence in str(refused.value)


# Table 4.1
NEWRENO, CUBIC, BBR = (
    ("aioquic", "kwik", "neqo", "quant"),
    ("msquic", "mvfst", "ngtcp2", "quiche"),
    ("lsquic", "picoquic", "xquic"),
)
THESIS = sorted((*NEWRENO, *CUBIC, *BBR, "chrome", "nginx", "quic-go", "quicly"))


def test_the_fifteen_stacks_of_the_thesis_are_there_with_its_congestion_controllers() -> None:
    stacks = load_catalog().implementations
    for name in THESIS:
        stack = stacks.get(f"{name}-public") or stacks[name]
        assert stack.build is None
        assert "table 4.2" in stack.congestion_source or name == "nginx"  # whose controller the thesis doesn't know
        assert stack.roles == {"chrome": (Role.CLIENT,), "nginx": (Role.SERVER,)}.get(name, tuple(Role))
        assert not stack.congestion_controls  # a published image ignores CCA
        for control, names in {"newreno": NEWRENO, "cubic": CUBIC, "bbr": BBR, "reno": ("quic-go", "quicly")}.items():
            assert (stack.congestion_control == control) is (name in names)
        assert stack.hystart is (None if name == "nginx" else name in ("chrome", "mvfst", "picoquic", "quiche"))
    assert [name for name in THESIS if stacks[name if name in stacks else f"{name}-public"].withdrawn] == [
        "quant",
        "quicly",
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not JSON"),
        ("", "is not JSON: it is empty."),
        ("[]", "the file: write an object"),
        ('{"schema": 9, "implementations": {}}', "schema"),
        ('{"schema": 1, "implementations": {"a": {"url": "u", "roles": ["client"]}}}', "implementations.a.image"),
        (
            '{"schema": 1, "implementations": {"a": {"image": "i", "url": "u", "roles": ["cliemt"]}}}',
            "a.roles[0]' is \"cliemt\": write 'client' or 'server'",
        ),
        ('{"schema": 1, "implementations": {"a_b": {"image": "i", "url": "u", "roles": ["client"]}}}', "'a_b'"),
        ('{"schema": 1, "implementations": {"a": {"image": "i", "url": "u", "roles": ["client"], "x": 1}}}', "a.x"),
    ],
)
def test_a_broken_catalogue_is_refused_with_file_and_field(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "implementations.json"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_catalog(path)
    assert str(path) in str(caught.value)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("knobs", "sentence"),
    [
        (
            {"IW": "10..1"},
            "middleboxes.p.knobs': IW: '10..1' ends before it begins (such as cubic|newreno, 1..10000 packets",
        ),
        ({"IW": "1-10, 20"}, "IW: '1-10, 20' is neither choices nor a range (such as "),
        ({"IW": "1s..10"}, "IW: '1s..10' is neither choices nor a range"),
        ({"IW": "1..2|3"}, "IW: '1..2|3' is neither choices nor a range"),
        ({"IW": ""}, "IW: '' is neither choices nor a range"),
        ({"iw": "1..10"}, "'iw' is not the name of a variable: write capitals, digits and '_'"),
        ({"IW": 10}, "middleboxes.p.knobs.IW' is 10: write text, in quotes"),
        (["IW"], "middleboxes.p.knobs': write an object, { … }"),
    ],
)
def test_a_knob_says_what_it_takes_or_is_refused(tmp_path: Path, knobs: object, sentence: str) -> None:
    path = tmp_path / "implementations.json"
    entry = {"image": "i", "knobs": knobs}
    path.write_text(json.dumps({"schema": 1, "implementations": {"a": ENTRY}, "middleboxes": {"p": entry}}))
    with pytest.raises(UsageError) as caught:
        load_catalog(path)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("form", "read", "refused"),
    [
        ("cubic|bbr2.1", {"cubic": "cubic", "bbr2.1": "bbr2.1"}, ["", "Cubic", "1", "cubic|bbr2.1"]),
        ("1..64", {"1": "1", "064": "64"}, ["0", "65", "1.0", "-1", "1e1", "٣", "9" * 5000]),
        ("0|1200..1452 bytes", {"0": "0", "1452": "1452"}, ["1", "1453", "1200 bytes"]),
        ("5s..1h", {"5000": "5000", "5s": "5s", "0.5m": "0.5m", "60m": "60m"}, ["4999ms", "61m", "1.5", "s", "-5s"]),
    ],
)
def test_a_knob_takes_what_it_says(form: str, read: dict[str, str], refused: list[str]) -> None:
    knob = Knob.parse(form)
    assert {value: knob.read(value) for value in read} == read
    assert [value for value in refused if knob.read(value) is not None] == []


def test_knobs_take_what_their_images_take() -> None:
    knobs = load_catalog().knobs
    go = (ROOT / "implementations/_carrier/source/options.go").read_text()
    rust = (ROOT / "implementations/middlebox-tcp-over-quic-quinn/source/src/transport.rs").read_text()
    text = dict(re.findall(r'^\t(\w+) += "?([\w ,]+?)"? +//', go, re.MULTILINE))
    for path in ("qpep", "quic-pep"):
        assert set(knobs[path]["CCA"].words) == set(text["controllers"].split(", "))
        assert set(knobs[path]["SLOW_START"].words) == set(text["slowStarts"].split(", "))
        assert (knobs[path]["PACKET_SIZE"].low, knobs[path]["PACKET_SIZE"].high) == (
            text["minPacketSize"],
            text["maxPacketSize"],
        )
        assert (knobs[path]["IW"].high, knobs[path]["FLOWS"].high) == (
            text["maxWindow"].replace("_", ""),
            text["maxFlows"],
        )
    assert set(knobs["tcp-over-quic-quinn"]["CCA"].words) == set(re.findall(r'Controller { name: "(\w+)"', rust))
    assert knobs["pep-split"]["CCA"].words == KERNEL_CONTROLLERS


def test_no_middlebox_is_called_as_the_lack_of_one(tmp_path: Path) -> None:
    path = tmp_path / "implementations.json"
    path.write_text(json.dumps({"schema": 1, "implementations": {"a": ENTRY}, "middleboxes": {"none": {"image": "i"}}}))
    with pytest.raises(UsageError, match=r"middleboxes\.none: `--via none` means no middlebox"):
        load_catalog(path)


def test_a_missing_catalogue_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't be read"):
        load_catalog(tmp_path / "none.json")


def test_cases_have_distinct_names_abbreviations_and_matching_modules() -> None:
    cases = load_cases()
    assert len({case.abbreviation for case in cases.values()}) == len(cases)
    for name, case in cases.items():
        assert case.name == name
        assert case.description.endswith(".")
        assert case.checks or case.client is not ClientKind.STACK


def test_the_satellite_link_is_the_one_of_the_thesis() -> None:
    sat = load_cases()["sat"].record()
    assert (sat.forward.data_rate, sat.return_.data_rate) == (20_000_000, 2_000_000)
    assert sat.forward.delay == sat.return_.delay == 0.3
    assert sat.forward.queue_packets == 125
    assert load_cases()["satloss"].record().forward.loss == 0.01
