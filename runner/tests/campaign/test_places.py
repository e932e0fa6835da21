"""Choices that real links refuse, before anything is connected."""

from pathlib import Path

import pytest

from runner.errors import UsageError
from runner.model.run import REAL
from runner.places.place import LinkPlace
from runner.plan.catalog import Catalog
from runner.plan.choice import choose
from runner.plan.options import MatrixOptions
from runner.tests.links.test_volume import LINK


def _require(catalog: Catalog, *vias: str) -> None:
    options = MatrixOptions(
        servers=("origin",), clients=("downloader",), cases=("download",), vias=vias, links_file=Path("/nowhere")
    )
    LinkPlace(links=(LINK,), clock=REAL).refuse(choose(options, catalog, None))


@pytest.mark.parametrize("via", ["none", "plain", "openvpn", "wireguard", "qpep", "qpep,none"])
def test_middleboxes_whose_boxes_meet_at_one_port_cross_real_links(catalog: Catalog, via: str) -> None:
    _require(catalog, via)


@pytest.mark.parametrize("via", ["pep-split", "pep-split-gateway", "tcp-over-quic-quinn", "none,pep-split"])
def test_others_are_refused_by_name(catalog: Catalog, via: str) -> None:
    name = via.rpartition(",")[2]
    with pytest.raises(UsageError, match=f"--via {name}: between each other, its boxes use more than one UDP port"):
        _require(catalog, via)
