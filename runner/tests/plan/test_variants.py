"""`--variant`: what is parsed, what is refused with the choices, where a variant stands, and that a run keeps it."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import UsageError
from runner.images.setup import Ready
from runner.inputs.inputs import environment
from runner.model.run import Run
from runner.model.stack import PARAMETERS, Middlebox, Role, Variant
from runner.plan import jobs
from runner.plan.catalog import Catalog, load_cases, load_catalog
from runner.plan.choice import doubts, parse, requested_variants, with_requested, with_variants_of
from runner.store.runs import RunFolder, extend_run, no_wider
from runner.tests.records import select

STACKS = {
    "fast": {
        "congestion_controllers": {"default": "cubic", "options": ["cubic", "bbr"]},
        "initial_window": {"packets": 10, "settable": True},
    },
    "fixed": {
        "congestion_controllers": {"default": "newreno", "options": ["newreno"]},
        "initial_window": {"packets": 32},
    },
    "stranger": {},
}


def _parse(texts: Iterable[str], catalog: Catalog) -> tuple[tuple[Variant, ...], dict[str, Middlebox]]:
    return requested_variants(texts, select(catalog, cases=("sat",)))


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    path = tmp_path_factory.mktemp("variants") / "implementations.json"
    entries = {
        name: {"image": name, "url": "u", "roles": ["client", "server"], **entry} for name, entry in STACKS.items()
    }
    path.write_text(json.dumps({"schema": 1, "implementations": entries}))
    return Catalog(implementations=load_catalog(path).implementations, cases=load_cases())


def test_a_variant_is_parsed_into_an_order_of_its_own(catalog: Catalog) -> None:
    variant = parse("fast:iw=032, CCA=bbr", catalog.implementations)
    assert variant == Variant(stack="fast", parameters=(("CCA", "bbr"), ("IW", "32")))
    assert variant.name == "fast+cca=bbr+iw=32"
    assert _parse(["fast:CCA=bbr,IW=32", "fast:IW=32,CCA=bbr"], catalog)[0] == (variant,)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("fast:IW=10/32", ["fast+iw=10", "fast+iw=32"]),
        ("fast:CCA=bbr/cubic,IW=10/32", [f"fast+cca={cca}+iw={iw}" for cca in ("bbr", "cubic") for iw in (10, 32)]),
        ('stranger:CCA="a/b"', ["stranger+cca=a-b"]),
        ("stranger:SERVER_PARAMS=/a/b", ["stranger+server-params=a-b"]),
    ],
)
def test_values_between_slashes_are_a_variant_each(catalog: Catalog, text: str, names: list[str]) -> None:
    assert [stack.name.partition("~")[0] for stack in _parse([text], catalog)[0]] == names


def test_a_sweep_with_a_value_missing_is_refused(catalog: Catalog) -> None:
    with pytest.raises(UsageError, match="--variant fast:IW=: IW has no value"):
        _parse(["fast:IW=10/"], catalog)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("stranger:SERVER_PARAMS=-x --y=1", "-x --y=1"),
        ('stranger:SERVER_PARAMS="-x 1,2",IW=9', "-x 1,2"),
        (r'stranger:SERVER_PARAMS="say \"hi\", \\ all"', r'say "hi", \ all'),
        ('stranger:SERVER_PARAMS=a"b', None),
        ('stranger:SERVER_PARAMS=" padded "', " padded "),
    ],
)
def test_free_text_may_be_quoted(catalog: Catalog, text: str, value: str | None) -> None:
    if value is None:
        with pytest.raises(UsageError, match="not closed"):
            parse(text, catalog.implementations)
    else:
        assert dict(parse(text, catalog.implementations).parameters)["SERVER_PARAMS"] == value


@given(value=st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1))
def test_any_printable_text_survives_quoting_and_makes_a_safe_name(catalog: Catalog, value: str) -> None:
    quoted = value.replace("\\", r"\\").replace('"', r"\"")
    variant = parse(f'stranger:CLIENT_PARAMS="{quoted}"', catalog.implementations)
    assert variant.parameters == (("CLIENT_PARAMS", value),)
    assert set(variant.name).isdisjoint('_/: "\\')
    assert variant.name.isascii()
    assert len(variant.name) < 100


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("fast", "write STACK:NAME=VALUE"),
        ("fast:", "write STACK:NAME=VALUE"),
        ("fats:IW=3", "there is no stack 'fats'. Did you mean fast? Choices: quic-go, "),
        ("fast:IWX=3", "there is no parameter 'IWX'. Did you mean IW? Choices: CCA, IW, ACK_FREQUENCY, "),
        ("fast:IW", "IW has no value"),
        ("fast:IW=", "IW has no value"),
        ("fast:IW=1,iw=2", "IW is given twice"),
        ("fast:IW=ten", "IW is a number of packets, 1 to 10000, not 'ten'"),
        ("fast:IW=0", "IW is a number of packets, 1 to 10000, not '0'"),
        ("fast:ACK_FREQUENCY=9999", "1 to 1000, not '9999'"),
        (
            "fast:CCA=bbrr",
            "has no congestion controller 'bbrr' that can be set. Did you mean bbr? Choices: cubic, bbr.",
        ),
        ("fixed:CCA=cubic", "Choices: newreno."),
        ("fast:SERVER_PARAMS=a\tb", "can't be printed"),
    ],
)
def test_what_is_wrong_is_one_sentence_with_the_choices(catalog: Catalog, text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text, catalog.implementations)
    assert str(caught.value).startswith(f"--variant {text}: ")
    assert sentence in str(caught.value)


def test_what_a_stack_does_not_declare_is_tried_with_a_warning(catalog: Catalog) -> None:
    stacks = catalog.implementations
    assert doubts(parse("fast:IW=32,CCA=bbr", stacks), stacks["fast"]) == []
    (only,) = doubts(parse("fixed:IW=10", stacks), stacks["fixed"])
    assert only.startswith("fixed+iw=10: fixed does not declare that its initial window can be set")
    assert len(doubts(parse("stranger:IW=10,CCA=copa", stacks), stacks["stranger"])) == 2


def placed(
    catalog: Catalog, *texts: str, servers: str = "fast,fixed", clients: str = "fast"
) -> tuple[Catalog, tuple[str, ...], tuple[str, ...]]:
    selection = select(catalog, servers=(servers,), clients=(clients,), cases=("sat",), iterations=1)
    selection = with_requested(selection, *_parse(texts, catalog))
    return selection.catalog, selection.servers, selection.clients


def test_a_variant_stands_beside_its_stack_in_the_roles_in_which_that_was_selected(catalog: Catalog) -> None:
    _, servers, clients = placed(catalog, "fast:IW=32", "fixed:IW=10", "fast:CCA=bbr")
    assert servers == ("fast", "fast+iw=32", "fast+cca=bbr", "fixed", "fixed+iw=10")
    assert clients == ("fast", "fast+iw=32", "fast+cca=bbr")


def test_what_only_a_server_is_told_makes_no_column(catalog: Catalog) -> None:
    _, servers, clients = placed(catalog, "fast:SERVER_PARAMS=-x")
    assert servers == ("fast", "fast+server-params=x~" + servers[1][-6:], "fixed")
    assert clients == ("fast",)
    with pytest.raises(UsageError, match="fixed is not selected as client"):
        placed(catalog, "fixed:CLIENT_PARAMS=-x")


def test_a_variant_has_the_image_and_the_claims_of_its_stack(catalog: Catalog) -> None:
    grown, _, _ = placed(catalog, "fast:IW=32")
    stack, variant = grown.implementations["fast"], grown.implementations["fast+iw=32"]
    assert (variant.image, variant.cases, variant.speaks) == (stack.image, stack.cases, stack.speaks)
    assert (variant.variant_of, variant.parameters) == ("fast", {"IW": "32"})
    mine = [name for name in grown.implementations if name.partition("+")[0] in ("fast", "fixed", "stranger")]
    assert mine == ["fast", "fast+iw=32", "fixed", "stranger"]


def test_a_run_holds_its_variants_and_goes_on_with_them(catalog: Catalog, tmp_path: Path) -> None:
    selection = select(catalog, servers=("fast",), clients=("fast",), cases=("sat",), iterations=1)
    requested = _parse(["fast:IW=32,CCA=bbr", "fast:SERVER_PARAMS=-x"], catalog)
    selection = with_requested(selection, *requested)
    run = Ready(ids={"fast": "sha256:1"}).recorded_in(jobs.new_run(tmp_path / "run", selection, seed=1))
    folder = RunFolder.create(tmp_path / "run", run)
    stored = RunFolder.open(tmp_path / "run").run
    assert stored.implementations["fast+cca=bbr+iw=32"].image_id == "sha256:1"
    again = with_variants_of(catalog, stored)
    resumed = select(again, servers=stored.servers, clients=stored.clients, cases=("sat",), iterations=1)
    assert replace(resumed, catalog=selection.catalog) == selection
    assert again.implementations == selection.catalog.implementations
    assert extend_run(folder, run) == stored


def test_going_on_asks_for_no_more_than_the_run_had(catalog: Catalog, tmp_path: Path) -> None:
    def plan(iterations: int | None, *texts: str) -> Run:
        selection = select(
            catalog, servers=("fast,fixed",), clients=("stranger",), cases=("sat",), iterations=iterations
        )
        selection = with_requested(selection, *_parse(texts, catalog))
        return jobs.new_run(tmp_path / "run", selection, seed=1)

    stored = plan(2)
    assert len(plan(None).order) == 2 * 10
    assert no_wider(stored, plan(None)).order == stored.order
    wider = no_wider(stored, plan(None, "fast:IW=32")).order
    assert {(job.server, job.iteration) for job in wider} - {(job.server, job.iteration) for job in stored.order} == {
        ("fast+iw=32", 1),
        ("fast+iw=32", 2),
    }


def test_each_role_gets_its_own_variables() -> None:
    requested = dict.fromkeys(PARAMETERS, "1")
    client = environment(Role.CLIENT, testcase="transfer", parameters=requested)
    server = environment(Role.SERVER, testcase="transfer", parameters=requested)
    assert {"CCA", "IW", "ACK_FREQUENCY", "CLIENT_PARAMS"} == set(requested) & set(client)
    assert {"CCA", "IW", "ACK_FREQUENCY", "SERVER_PARAMS"} == set(requested) & set(server)
