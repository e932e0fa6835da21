"""Establishes the facts of a recording. Each fact comes from the vantage point that shows it."""

from collections.abc import Sequence

from runner.decode.schema import CLIENT, SERVER, Trace
from runner.trace import handshake, hello, http3, landmarks, packets, paths
from runner.trace.credit import credit_excess, limits_raised
from runner.trace.endings import endings
from runner.trace.first_flight import first_flight
from runner.trace.nouns import UnreadPackets
from runner.trace.requests import requests
from runner.trace.scope import Scope, integer_parameter, values
from runner.trace.streams import Streams, max_streams
from runner.trace.trace_facts import ConnectionFacts, TraceFacts
from runner.trace.transfer import Transfer
from runner.trace.unread import protected, unread
from runner.trace.vantage import Recording


def facts(client_side: Trace | None, server_side: Trace | None) -> TraceFacts:
    """The facts that both captures of a job establish. A capture may be missing; facts that need this capture are None.

    Never raises when the tables follow the schema, whatever they contain.
    """
    recording = Recording(client_side, server_side)
    streams = Streams(recording)
    versions = frozenset[int]()
    for vantage in recording.vantages:
        versions |= values(vantage.datagrams["ip_version"])
    closed = unread(recording)
    by_connection: dict[int | None, list[UnreadPackets]] = {}
    for group in closed:
        by_connection.setdefault(group.connection, []).append(group)
    protected_packets, unread_packets = protected(recording)
    return TraceFacts(
        connections=tuple(
            _connection(Scope(recording, number), streams, by_connection.get(number, ()))
            for number in range(len(recording.connections))
        ),
        origin_unix_ns=recording.origin_ns,
        client_side=recording.client is not None,
        server_side=recording.server is not None,
        ip_versions=versions,
        ipv4=packets.first_ipv4(recording),
        first_flight=first_flight(Transfer(recording)),
        protected_packets=protected_packets,
        unread_packets=unread_packets,
        unread=closed,
    )


def _connection(scope: Scope, all_streams: Streams, closed: Sequence[UnreadPackets]) -> ConnectionFacts:
    row = scope.row
    streams = all_streams.of_connection(scope.number)
    echoed, reset = handshake.after_retry(scope)
    first_max_streams, last_max_streams = max_streams(scope)
    return ConnectionFacts(
        version=row.value("version"),
        original_version=row.value("original_version"),
        alpn=row.value("alpn"),
        offered_alpn=tuple(row.value("offered_alpn") or ()),
        suite=row.value("suite"),
        offered_suites=tuple(row.value("offered_suites") or ()),
        sni=row.value("sni"),
        client_parameters=scope.client_parameters,
        server_parameters=scope.server_parameters,
        version_negotiations=hello.version_negotiations(scope),
        client_hello_count=row.value("client_hello_count") or 0,
        client_hello=hello.client_hello(scope),
        handshake_completed=handshake.completed(scope),
        handshake_completed_by_client=scope.count(CLIENT, "1rtt") > 0,
        certificate_sent=bool(row.either("certificate")),
        resumed=row.either("resumed"),
        retries=scope.count(SERVER, "retry"),
        retry_token_echoed=echoed,
        packet_number_reset=reset,
        retry_integrity_ok=row.value("retry_integrity_ok"),
        early_data_offered=bool(row.either("early_data_offered")),
        early_data_accepted=handshake.early_data_accepted(scope),
        early_data_bytes=all_streams.early_bytes(scope.number),
        early_data_requests=handshake.early_requests(scope, streams),
        first_initial=scope.first_at_client(CLIENT, "initial"),
        first_server_1rtt=scope.first_at_client(SERVER, "1rtt"),
        handshake_confirmed=handshake.confirmed(scope),
        closes=handshake.closes(scope),
        streams=streams,
        max_concurrent_streams=all_streams.max_concurrent(scope.number),
        initial_max_streams_bidi=first_max_streams,
        max_streams_bidi=last_max_streams,
        initial_max_data=integer_parameter(scope.client_parameters, "initial_max_data"),
        initial_max_stream_data=integer_parameter(scope.client_parameters, "initial_max_stream_data_bidi_local"),
        credit_excess=credit_excess(scope),
        client_key_updates=packets.key_updates(scope, CLIENT),
        key_updates_begun_by_client=packets.begun_key_updates(scope, CLIENT),
        server_key_updates=packets.key_updates(scope, SERVER),
        client_ecn=packets.ecn(scope, CLIENT),
        server_ecn=packets.ecn(scope, SERVER),
        paths=paths.paths(scope),
        challenges=paths.challenges(scope),
        amplification=paths.amplification(scope),
        ip_versions=packets.ip_versions(scope),
        undecrypted_packets=packets.undecrypted(scope),
        server_lengths=packets.lengths(scope, SERVER),
        landmarks=landmarks.landmarks(scope),
        unread=tuple(closed),
        early_data_unread=handshake.early_data_unread(scope),
        probe=hello.probe(scope),
        client_1rtt_bytes=handshake.client_1rtt_bytes(scope),
        server_handshake_bytes=handshake.server_handshake_bytes(scope),
        limits_raised=limits_raised(scope),
        http3=http3.streams(scope),
        requests=requests(scope),
        endings=endings(scope),
    )
