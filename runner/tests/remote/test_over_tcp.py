"""Real links and stacks over TCP: refused with a sentence before any host is touched."""

from dataclasses import replace
from pathlib import Path

import pytest

from runner.config.catalog import Catalog
from runner.errors import UsageError
from runner.remote.real import RealLinks
from runner.tests.campaign.test_campaign import recorded_run


def test_jobs_over_tcp_are_refused(tmp_path: Path, catalog: Catalog) -> None:
    run = recorded_run(tmp_path, catalog, iterations=1)
    over_tcp = replace(run, protocols={job.cell: "h2" for job in run.order})
    with (
        pytest.raises(UsageError, match="--link carries QUIC alone, and quinn with quinn speaks over TCP"),
        RealLinks.open(over_tcp, (), ledger=tmp_path / "volume.json", say=print, report=lambda *_: None),
    ):
        pass
