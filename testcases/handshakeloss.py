"""L1: 50 handshakes on a link that loses 30 % of the packets."""

from runner.model.run import Kind
from runner.units import KIB
from testcases import checks
from testcases.base import Case
from testcases.hits import Hit
from testcases.links import LOSS_30

CASE = Case(
    name="handshakeloss",
    abbreviation="L1",
    kind=Kind.TEST_CASE,
    description="50 connections, each with 1 KiB, although 30 % of the packets are lost, at most 3 in a row.",
    wire_name="multiconnect",
    link=LOSS_30,
    files=(1 * KIB,) * 50,
    timeout=300.0,
    iterations=3,
    preconditions=(Hit("dropped_loss"),),
    exercises=("rfc9000-2.2", "rfc9000-12.3", "rfc9000-13.1", "rfc9001-4.9", "rfc9002-6.2.1"),
    checks=(*checks.COMMON, checks.a_handshake_per_file, checks.version_is_1, checks.alpn_of_job),
)
