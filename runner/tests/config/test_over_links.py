"""Which case runs over which link."""

from dataclasses import replace

import pytest

from runner.config.catalog import Catalog
from runner.config.over_links import assign, bound_all, case_of, refuse_real, with_measurements
from runner.errors import UsageError
from runner.model.real_link import RealLink
from runner.tests.remote.test_volume import LINK

SKY = replace(LINK, name="sky", provider="Sky", tariff="L", iterations=3, forward_rate=7_000_000)


def _assigned(catalog: Catalog, *names: str, links: tuple[RealLink, ...] = (LINK, SKY)) -> dict[str, str]:
    return {case: link.name for case, link in assign(with_measurements(catalog, links), links, names).items()}


def test_without_a_case_each_link_has_its_own_measurement(catalog: Catalog) -> None:
    assert _assigned(catalog) == {"astra": "astra", "sky": "sky"}
    known = with_measurements(catalog, (LINK, SKY)).cases
    assert known["astra"] is catalog.cases["astra"]
    assert (known["sky"].abbreviation, known["sky"].iterations) == ("SKY", 3)
    assert "Sky L" in known["sky"].description


def test_a_named_case_takes_the_only_link(catalog: Catalog) -> None:
    assert _assigned(catalog, "transfer,SAT", "astra", links=(SKY,)) == dict.fromkeys(
        ("transfer", "astra", "sat"), "sky"
    )
    assert _assigned(catalog, "sky,astra") == {"sky": "sky", "astra": "astra"}
    with pytest.raises(UsageError, match=r"--case transfer: over astra or sky\? Name one --link for it"):
        _assigned(catalog, "transfer")


def test_cases_that_need_an_obedient_link_are_refused(catalog: Catalog) -> None:
    for name in ("blackhole", "transferloss", "rebind-port", "satloss", "amplificationlimit"):
        with pytest.raises(UsageError, match=f"--case {name}: it needs a link that loses or changes packets"):
            _assigned(catalog, name, links=(SKY,))


def test_real_cases_need_a_link_and_are_not_selected_without(catalog: Catalog) -> None:
    assert "astra" not in catalog.select_cases(())
    refuse_real(catalog, catalog.select_cases(()))
    with pytest.raises(UsageError, match=r"--case eutelsat: it runs over a real link: name one of links\.json"):
        refuse_real(catalog, catalog.select_cases(("goodput,eutelsat",)))


def test_an_abbreviation_that_is_taken_is_told(catalog: Catalog) -> None:
    with pytest.raises(UsageError, match="its abbreviation SAT is that of sat"):
        with_measurements(catalog, (replace(SKY, name="sat-2", abbreviation="SAT"),))


def test_links_take_no_name_and_no_abbreviation_of_another(catalog: Catalog) -> None:
    with pytest.raises(UsageError, match="link 'sat': that is the name of a test case"):
        with_measurements(catalog, (replace(SKY, name="sat"),))
    with pytest.raises(UsageError, match="link 'roof-b': its abbreviation ROOF is that of roof-a"):
        with_measurements(catalog, (replace(SKY, name="roof-a"), replace(SKY, name="roof-b")))


def test_the_record_knows_the_link_again_without_its_secrets(catalog: Catalog) -> None:
    records = {name: catalog.cases[name].record() for name in ("transfer", "goodput")}
    found = bound_all(records, {"transfer": SKY})
    assert found["goodput"] == records["goodput"]
    record = found["transfer"]
    assert record.real_link is not None
    assert (record.scenario, record.real_link.client, record.forward.data_rate) == ("SKY", "roof", 7_000_000)
    assert record.forward.is_real
    assert not records["goodput"].forward.is_real
    text = str(record)
    assert not any(secret in text for secret in ("ssh-ed25519", "192.0.2.1", "AAAA"))
    assert case_of(record).name == "transfer"
