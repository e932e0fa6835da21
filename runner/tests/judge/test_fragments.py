"""An endpoint that fragments its datagrams hides them from the decoder. Its peer is not accused because of that."""

import struct
from collections.abc import Callable
from dataclasses import replace

from runner.decode.tables import decode_capture
from runner.judge.job_traces import fragmented_packets, protocol_findings
from runner.judge.judges import analyse
from runner.model.result import Artifacts
from runner.model.run import Job
from runner.model.stack import Role
from runner.plan.catalog import Catalog
from runner.tests.decode.rewrite import Record, read, write_pcap

JOB = Job(server="quic-go", client="quic-go", case="transfer", iteration=1)
WHOLE = 2  # datagrams of the client that are not fragmented


def _fragmented(records: list[Record]) -> list[Record]:
    """The packets of a capture, where all but the client's first datagrams have the flag More Fragments (RFC 791)."""
    seen, changed = 0, []
    for record in records:
        seen += record.from_client()
        frame = bytearray(record.frame)
        if record.from_client() and seen > WHOLE:
            struct.pack_into(">H", frame, 20, 0x2000)
        changed.append(replace(record, frame=bytes(frame)))
    return changed


def test_the_peer_of_an_endpoint_that_sends_fragments_is_not_accused(
    catalog: Catalog, recorded: Callable[[str], Artifacts]
) -> None:
    artifacts = recorded("quic-go_quic-go/transfer")
    captures = artifacts.client_capture, artifacts.server_capture
    for capture in captures:
        write_pcap(capture, _fragmented(read(capture)))
    client_side, server_side = (decode_capture(capture, artifacts.key_logs) for capture in captures)
    assert fragmented_packets(client_side, server_side)[Role.CLIENT] > 3
    assert fragmented_packets(client_side, server_side)[Role.SERVER] == 0
    accused = {violation.role for violation in protocol_findings(client_side, server_side)}
    assert Role.SERVER in accused, "it acknowledges packets that nobody seems to have sent"

    result = analyse(JOB, artifacts, catalog.cases["transfer"], catalog.cases["transfer"].record())
    assert not [violation for violation in result.violations if violation.role == Role.SERVER]
    broken = [invariant.name for invariant in result.invariants if invariant.holds is False]
    assert "client_side.fragmented_packets" in broken
