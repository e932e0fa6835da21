"""The packets that a server sends before the first ACK can arrive: the initial window on the wire (RFC 9002 §7.2)."""

import numpy as np

from runner.decode.schema import CLIENT, SERVER
from runner.trace.rtt import ack_eliciting
from runner.trace.trace_facts import FirstFlight
from runner.trace.transfer import Transfer, first_acknowledged
from runner.trace.vantage import NULL, Vantage

_LEAST_DATAGRAM = 1200  # bytes of UDP payload that every path carries (RFC 9000 §14)


def first_flight(transfer: Transfer) -> FirstFlight | None:
    """The first flight of the first connection with response data, at the server's vantage point.

    The flight begins when the first request arrives, because the client may acknowledge earlier packets (tickets,
    connection IDs, settings) together with the request. It ends before the first ACK for one of its packets arrives.
    None when the capture at the server is missing or lacks packets.

    RFC 9002 §7.2 recommends a window of 10 · max_datagram_size, at most 14 720 B or twice max_datagram_size if that is
    more. The flight differs from the window for three reasons. Flow control or the file may be smaller than the window.
    Pacing may spread the flight over more than an RTT. Handshake bytes use a part of the window until they are
    acknowledged, and then they enlarge it.
    """
    server, sent = transfer.recording.server, transfer.sent
    if server is None or sent is None or not transfer.sent_completely:
        return None
    connection = int(sent.connection[0])
    of_connection = sent.connection == connection
    first_data = int(sent.time_ns[of_connection].min())
    begin = _request(server, connection, first_data)
    packets = server.packets
    mine = (packets["sender"] == SERVER) & (packets["connection"] == connection) & packets.named("type", "1rtt")
    mine &= ack_eliciting(server) & (packets["packet_number"] != NULL) & (server.packet_time >= begin)
    rows = np.flatnonzero(mine)
    if not len(rows):
        return None
    acknowledged = first_acknowledged(server, connection, rows)
    if acknowledged is not None:
        rows = rows[server.packet_time[rows] < acknowledged]
        of_connection &= sent.time_ns < acknowledged
    if not len(rows):
        return None
    size = server.datagrams["payload_length"][np.unique(packets["datagram"][rows])]
    full = size[size >= _LEAST_DATAGRAM]
    return FirstFlight(
        packets=len(rows),
        bytes=int(packets["length"][rows].sum()),
        datagram_bytes=int(np.median(full)) if len(full) else _LEAST_DATAGRAM,
        response_bytes=int(sent.new[of_connection].sum()),
        duration=(int(server.packet_time[rows].max()) - first_data) / 1e9,
        acknowledged=(acknowledged - first_data) / 1e9 if acknowledged is not None else None,
    )


def _request(server: Vantage, connection: int, default: int) -> int:
    """The time when the first request arrived, in ns; at most `default`, which is also used without a request."""
    frames = server.stream_frames
    requests = (frames["connection"] == connection) & (frames["sender"] == CLIENT) & (frames["stream_id"] % 4 == 0)
    return min(int(frames["time_ns"][requests].min()), default) if requests.any() else default
