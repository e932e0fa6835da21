"""Real links, guests and stacks over TCP: refused with a sentence before anything is started."""

from dataclasses import replace
from pathlib import Path

import pytest

from runner.config.catalog import Catalog
from runner.errors import UsageError
from runner.guests.deployment import Guests
from runner.remote.real import RealLinks
from runner.tests.campaign.test_campaign import recorded_run


def test_jobs_over_tcp_are_refused(tmp_path: Path, catalog: Catalog) -> None:
    run = recorded_run(tmp_path, catalog, iterations=1)
    over_tcp = replace(run, protocols={job.cell: "h2" for job in run.order})
    with (
        pytest.raises(UsageError, match="A real link carries QUIC alone, and quinn with quinn speaks over TCP"),
        RealLinks.open(over_tcp, (), ledger=tmp_path / "volume.json", say=print, report=lambda *_: None),
    ):
        pass


def test_jobs_over_tcp_are_refused_in_virtual_time(tmp_path: Path, catalog: Catalog) -> None:
    run = recorded_run(tmp_path, catalog, iterations=1)
    over_tcp = replace(run, clock="virtual", protocols={job.cell: "h2" for job in run.order})
    with (
        pytest.raises(UsageError, match="--clock virtual runs QUIC alone, and quinn with quinn speaks over TCP"),
        Guests.open(over_tcp, lanes=1, scratch=tmp_path),
    ):
        pass
