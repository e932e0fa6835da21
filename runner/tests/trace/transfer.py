"""A small transfer with a loss and a needless retransmission, whose numbers can be checked by hand."""

import json
from dataclasses import replace
from typing import Any

from runner.decode.columns import CLIENT, SERVER, Trace
from runner.model.link import LinkParameters
from runner.model.result import Sample
from runner.tests.trace.tables import Ack, Frame, Packet, Stream, connection, trace
from runner.trace.establish import facts
from runner.trace.measure import sample, series
from runner.trace.streams import Transfer

FORWARD = LinkParameters(data_rate=1_000_000, delay=0.1, queue_packets=25, loss=0.1)
RETURN = LinkParameters(data_rate=1_000_000, delay=0.1, queue_packets=25, loss=0.0)
ONE_WAY = 0.1
FILE = 5000


def _client_packets() -> list[tuple[float, Packet]]:
    """The client's packets with their times of sending: handshake, request, ACKs."""
    return [
        (0.0, Packet(0, CLIENT, 0, (Frame("crypto"),), type="initial")),
        (0.2, Packet(0, CLIENT, 1, (Stream(0, 0, 12, fin=True),), length=60)),
        (0.45, Packet(0, CLIENT, 2, (Ack(((1, 2),), delay_us=10_000),), length=40)),
        (0.70, Packet(0, CLIENT, 3, (Ack(((6, 7), (4, 4), (1, 2))),), length=40)),
        (0.90, Packet(0, CLIENT, 4, (Ack(((8, 8), (6, 7), (1, 4))), Frame("application_close", 0x1D, 0)), length=50)),
    ]


def _server_packets() -> list[tuple[float, Packet]]:
    """The server's packets with 5000 B. 1000 B are lost (packet 3) and sent again in other packets; 500 B are sent
    again needlessly."""
    return [
        (0.1, Packet(0, SERVER, 0, (Frame("crypto"),), type="initial")),
        (0.1, Packet(0, SERVER, 0, (Frame("handshake_done"),), length=50)),
        (0.3, Packet(0, SERVER, 1, (Stream(0, 0, 1000),), length=1040)),
        (0.31, Packet(0, SERVER, 2, (Stream(0, 1000, 1000),), length=1040)),
        (0.32, Packet(0, SERVER, 3, (Stream(0, 2000, 1000),), length=1040)),
        (0.55, Packet(0, SERVER, 4, (Stream(0, 3000, 1000),), length=1040)),
        (0.56, Packet(0, SERVER, 6, (Stream(0, 1500, 1300),), length=1340)),
        (0.57, Packet(0, SERVER, 7, (Stream(0, 2800, 200),), length=240)),
        (0.70, Packet(0, SERVER, 8, (Stream(0, 4000, 1000, fin=True),), length=1040)),
    ]


def captures() -> tuple[Trace, Trace]:
    client, server = [], []
    for time, packet in _client_packets():
        client.append(replace(packet, time=time))
        server.append(replace(packet, time=time + ONE_WAY))
    for time, packet in _server_packets():
        server.append(replace(packet, time=time))
        if packet.number != 3:
            client.append(replace(packet, time=time + ONE_WAY))
    parameters = {"initial_max_data": 4000, "initial_max_stream_data_bidi_local": 100_000}
    row = connection(
        version=1, alpn="hq-interop", client_hello_count=1, client_transport_parameters=json.dumps(parameters)
    )
    ordered = [sorted(packets, key=lambda packet: packet.time) for packets in (client, server)]
    return trace(ordered[0], row), trace(ordered[1], row)


def measure(client_side: Trace | None, server_side: Trace | None) -> Sample:
    trace_facts = facts(client_side, server_side)
    return sample(Transfer(client_side, server_side), trace_facts, file_sizes=(FILE,), forward=FORWARD, return_=RETURN)


def draw(client_side: Trace | None, server_side: Trace | None) -> dict[str, Any]:
    trace_facts = facts(client_side, server_side)
    numbers = sample(
        Transfer(client_side, server_side), trace_facts, file_sizes=(FILE,), forward=FORWARD, return_=RETURN
    )
    return series(
        Transfer(client_side, server_side), trace_facts, numbers, file_sizes=(FILE,), forward=FORWARD, return_=RETURN
    )
