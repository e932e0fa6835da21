"""Cases over real links."""

from dataclasses import replace

import pytest

from runner.errors import UsageError
from runner.model.link import RealLink
from runner.plan.catalog import Catalog, declaration, with_measurements
from runner.plan.choice import named_cases
from runner.tests.links.test_volume import LINK
from runner.tests.records import over_real

SKY = replace(LINK, name="sky", provider="Sky", tariff="L", iterations=3, forward_rate=7_000_000)


def _asked(catalog: Catalog, *names: str, links: tuple[RealLink, ...] = (LINK, SKY)) -> dict[str, str]:
    records = over_real(with_measurements(catalog, links), links, names)
    return {name: record.real_link.name for name, record in records.items() if record.real_link is not None}


def test_without_a_case_each_link_has_its_own_measurement(catalog: Catalog) -> None:
    assert _asked(catalog) == {"astra": "astra", "sky": "sky"}
    known = with_measurements(catalog, (LINK, SKY)).cases
    assert known["astra"] is catalog.cases["astra"]
    assert (known["sky"].abbreviation, known["sky"].iterations) == ("SKY", 3)
    assert "Sky L" in known["sky"].description


def test_a_named_case_takes_the_link(catalog: Catalog) -> None:
    assert _asked(catalog, "transfer,SAT", links=(SKY,)) == {"transfer@sky": "sky", "sat@sky": "sky"}
    assert _asked(catalog, "sky,astra") == {"sky": "sky", "astra": "astra"}


def test_cases_that_need_an_obedient_link_are_refused(catalog: Catalog) -> None:
    for name in ("blackhole", "transferloss", "rebind-port", "satloss", "amplificationlimit"):
        with pytest.raises(UsageError, match=f"--case {name}: it tests its own link, which loses or changes"):
            _asked(catalog, name, links=(SKY,))


def test_real_cases_are_not_selected_without_a_name(catalog: Catalog) -> None:
    assert "astra" not in named_cases(catalog, ())


def test_an_abbreviation_that_is_taken_is_told(catalog: Catalog) -> None:
    with pytest.raises(UsageError, match="its abbreviation SAT is also that of sat"):
        with_measurements(catalog, (replace(SKY, name="sat-2", abbreviation="SAT"),))


def test_links_take_no_name_and_no_abbreviation_of_another(catalog: Catalog) -> None:
    with pytest.raises(UsageError, match="link 'sat': that is the name of a test case"):
        with_measurements(catalog, (replace(SKY, name="sat"),))
    with pytest.raises(UsageError, match="link 'roof-b': its abbreviation ROOF is also that of roof-a"):
        with_measurements(catalog, (replace(SKY, name="roof-a"), replace(SKY, name="roof-b")))


def test_the_record_knows_the_link_again_without_its_secrets(catalog: Catalog) -> None:
    known = with_measurements(catalog, (SKY,))
    record = over_real(known, (SKY,), ("transfer",))["transfer@sky"]
    assert record.real_link is not None
    assert (record.link.name, record.real_link.client, record.forward.data_rate) == ("sky", "roof", 7_000_000)
    assert record.forward.is_real
    text = str(record)
    assert not any(secret in text for secret in ("ssh-ed25519", "192.0.2.1", "AAAA"))
    assert declaration(catalog.cases, record) is not None
    case = over_real(known, (SKY,), ())["sky"]
    assert declaration(catalog.cases, case) is not None and declaration({}, replace(case, link=record.link)) is not None
