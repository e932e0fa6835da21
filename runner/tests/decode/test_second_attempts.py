"""The decoder on clients that follow a Version Negotiation packet: they begin another connection, also when it has the
connection IDs of the first (RFC 9368 §2.4)."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicProtocolVersion, encode_quic_retry, encode_quic_version_negotiation
from aioquic.tls import SessionTicket

from runner.decode.columns import SERVER, Trace
from runner.decode.tables import unique_bytes_by_stream
from runner.tests.decode.decoded import decode_pairs, undecrypted
from runner.tests.decode.pairs import Pair

V1, V2, UNKNOWN = QuicProtocolVersion.VERSION_1, QuicProtocolVersion.VERSION_2, 0x1A2A3A4A
_ADDRESS, _RETRY = ("193.167.100.100", 443), b"retry id"
_SIZE = 5000


class Attempts(Pair):
    """A client whose first flight in `version` gets a Version Negotiation packet. It begins again as aioquic does: with
    another client random, the same connection IDs, and packet number 0."""

    def __init__(self, version: int) -> None:
        super().__init__(client_options={"original_version": version})
        self._configuration = self.client.configuration
        self._configuration.supported_versions = [V1, version]
        self.client = QuicConnection(configuration=self._configuration)
        self.tickets: dict[bytes, Any] = {}

    def begin(self, *, answered: bool = False) -> "Attempts":
        """The first flight and the Version Negotiation packet. `answered`: the packet is forged, because the server
        knows the version and answers, too."""
        self.client.connect(_ADDRESS, now=self.now)
        flight = self._flight()
        self.odcid = flight[0][6 : 6 + flight[0][5]]
        if answered:
            other = self._serve(flight, replace(self._server_configuration, supported_versions=[V2]))
            self.records += [self._record(data, from_client=False) for data, _ in other.datagrams_to_send(now=self.now)]
        return self._answer(encode_quic_version_negotiation(self.odcid, self.client.host_cid, [V1]))

    def anew(self, scid: bytes = b"") -> "Attempts":
        """Let the client begin again as quic-go does: with other connection IDs, and the next packet number. `scid`:
        its source connection ID."""
        self._configuration.original_version, number = None, self.client._packet_number
        self.client = QuicConnection(configuration=self._configuration)
        self.client._packet_number = number
        if scid:
            self.client._host_cids[0].cid = self.client.host_cid = scid
            self.client._local_initial_source_connection_id = scid
        self.client.connect(_ADDRESS, now=self.now)
        return self

    def retry(self) -> "Attempts":
        """Answer the second first flight by Retry."""
        flight = self._flight()
        dcid = flight[0][6 : 6 + flight[0][5]]
        self.server = QuicConnection(
            configuration=self._server_configuration,
            original_destination_connection_id=dcid,
            retry_source_connection_id=_RETRY,
        )
        return self._answer(encode_quic_retry(V1, _RETRY, self.client.host_cid, dcid, b"token"))

    def finish(self) -> "Attempts":
        """Complete the handshake, and transfer _SIZE bytes."""
        self.exchange(6).request(_SIZE)
        return self

    def _flight(self) -> list[bytes]:
        flight = [data for data, _ in self.client.datagrams_to_send(now=self.now)]
        self.records += [self._record(data, from_client=True) for data in flight]
        return flight

    def _answer(self, data: bytes) -> "Attempts":
        self.records.append(self._record(data, from_client=False))
        self.client.receive_datagram(data, _ADDRESS, now=self.now)
        return self

    def _serve(self, flight: list[bytes], configuration: Any) -> QuicConnection:
        server = QuicConnection(
            configuration=configuration,
            original_destination_connection_id=flight[0][6 : 6 + flight[0][5]],
            session_ticket_fetcher=self.tickets.get,
            session_ticket_handler=lambda ticket: self.tickets.update({ticket.ticket: ticket}),
        )
        for data in flight:
            server.receive_datagram(data, ("193.167.0.100", self.client_port), now=self.now)
        return server

    def accept(self) -> "Attempts":
        """Begin a server that gives and takes session tickets."""
        self.server = self._serve(self._flight(), self._server_configuration)
        return self


def _whole(trace: Trace, pair: Attempts) -> dict[str, Any]:
    """The last connection of a trace, after checks that its packets, its content and its last ClientHello were read."""
    row = dict(trace.connections.to_pylist()[-1])
    assert set(undecrypted(trace)) <= {"unknown"}
    sizes = unique_bytes_by_stream(trace.stream_frames)
    assert [size for (_, sender, _), size in sizes.items() if sender == SERVER] == [_SIZE]
    assert row["client_random"].hex() in pair.key_log.decode().split()
    assert (row["version"], row["alpn"]) == (V1, "hq-interop")
    assert json.loads(row["client_transport_parameters"])["version_information"][0] == "0x00000001"
    return row


@pytest.mark.parametrize("retried", [False, True])
@pytest.mark.parametrize("port", [50000, 50001])
@pytest.mark.parametrize("random", ["new", "same"])
def test_again_with_the_same_connection_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, random: str, port: int, retried: bool
) -> None:
    pair = Attempts(V2)
    if random == "same":
        monkeypatch.setattr(os, "urandom", bytes)
    pair.begin()
    monkeypatch.undo()
    pair.client_port = port
    trace = decode_pairs(tmp_path, [(pair.retry() if retried else pair).finish()])
    row = _whole(trace, pair)
    assert trace.connections["original_version"].to_pylist() == [V2, V1]
    assert trace.connections["odcid"].to_pylist() == [pair.odcid, pair.odcid]
    assert trace.packets["connection"].to_pylist()[:3] == [0, 0, 1]
    assert (row["client_hello_count"], row["retry"]) == (1 + retried, retried)


@pytest.mark.parametrize("retried", [False, True])
@pytest.mark.parametrize("scid", ["new", "same"])
@pytest.mark.parametrize("version", [V2, UNKNOWN])
def test_again_with_other_connection_ids(tmp_path: Path, version: int, scid: str, retried: bool) -> None:
    """A first flight that can't be read has no content, so it gets no connection of its own."""
    pair = Attempts(version).begin()
    pair.anew(pair.client.host_cid if scid == "same" else b"")
    trace = decode_pairs(tmp_path, [(pair.retry() if retried else pair).finish()])
    row = _whole(trace, pair)
    assert trace.connections["original_version"].to_pylist() == ([V2, V1] if version == V2 else [UNKNOWN])
    assert trace.connections["odcid"].to_pylist()[0] == pair.odcid
    assert row["retry"] is retried


def test_early_data_again(tmp_path: Path) -> None:
    """Its keys follow from the client random, too."""
    first, pair, tickets = Attempts(V1), Attempts(V2), list[SessionTicket]()
    first.client = QuicConnection(configuration=first._configuration, session_ticket_handler=tickets.append)
    first.client.connect(_ADDRESS, now=0.0)
    first.accept().finish()
    pair.tickets, pair._configuration.session_ticket = first.tickets, tickets[0]
    pair.client = QuicConnection(configuration=pair._configuration)
    pair.begin()
    pair.client.send_stream_data(pair.client.get_next_available_stream_id(), b"early")
    trace = decode_pairs(tmp_path, [pair.accept().finish()])
    _whole(trace, pair)
    assert "0rtt" in trace.packets["type"].to_pylist()


@pytest.mark.parametrize("ids", ["new", "same"])
def test_a_server_that_answers_both_versions(tmp_path: Path, ids: str) -> None:
    pair = Attempts(V2).begin(answered=True)
    trace = decode_pairs(tmp_path, [(pair.anew() if ids == "new" else pair).finish()])
    row = _whole(trace, pair)
    assert (trace.connections.num_rows, row["original_version"]) == (2, V1)


def test_a_late_copy_of_the_first_flight_changes_nothing(tmp_path: Path) -> None:
    pair = Attempts(V2).begin()
    pair.exchange(1)
    pair.records.append(pair._record(pair.records[0].payload, from_client=True))
    trace = decode_pairs(tmp_path, [pair.finish()])
    assert _whole(trace, pair)["original_version"] == V1
    assert trace.connections.num_rows == 2


@pytest.mark.parametrize("place", [1, 2, 3])
def test_an_ignored_version_negotiation_changes_nothing(tmp_path: Path, place: int) -> None:
    """The server changes to a compatible version, which the forged packet lists, too (RFC 9368 §2.3)."""
    pair = Pair()
    pair.client.configuration.supported_versions = [V2, V1]
    pair.client.configuration.original_version = V1
    pair.client = QuicConnection(configuration=pair.client.configuration)
    pair.connect().request(_SIZE)
    data = pair.records[0].payload
    forged = encode_quic_version_negotiation(data[6 : 6 + data[5]], pair.client.host_cid, [V2])
    record = replace(pair._record(forged, from_client=False), time_ns=pair.records[place].time_ns - 1)
    whole = decode_pairs(tmp_path, [pair]).connections.drop_columns("messages").to_pylist()
    trace = decode_pairs(tmp_path, [pair], [*pair.records, record])
    assert undecrypted(trace) == []
    assert trace.connections.drop_columns("messages").to_pylist() == whole
    assert (whole[0]["original_version"], whole[0]["version"]) == (V1, V2)
