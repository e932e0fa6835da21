"""Decodes the two captures of a job over TCP, with their key logs, to two traces."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from runner.decode.cache import load_tables, pair_key, save_tables, stored_key
from runner.decode.capture import CaptureFile, open_capture
from runner.decode.ip_packets import Packet, packets_by_addresses, packets_of
from runner.decode.keylog import read_key_logs
from runner.decode.schema import CLIENT, DECODER_VERSION, SERVER, CaptureMeta, Trace
from runner.decode.tcp.match import Numbered, number_segments
from runner.decode.tcp.segments import TcpConnection, read_connections
from runner.decode.tcp.tables import Exchange, TcpTableBuilder
from runner.decode.tcp.tls import TlsConnection, read_tls
from runner.decode.trace_checks import trace_checks
from runner.errors import CaptureError


class _Capture:
    """One capture file in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file, self.stored = open_capture(path)
        self.packets: list[Packet] = packets_of(self.file)
        self.connections = read_connections(self.packets, self.file.data)

    @property
    def secrets(self) -> list[bytes]:
        return self.file.secrets


def decode_tcp(
    client: Path, server: Path, key_logs: Sequence[Path] = (), *, kernel_drops: int | None = None
) -> tuple[Trace, Trace]:
    """The traces at the client and at the server.

    Both captures are read together: segments carry no packet numbers, so only a comparison of the captures identifies
    them. Raises CaptureError when a file is no capture.
    """
    captures = _Capture(client), _Capture(server)
    sessions, _ = read_key_logs(key_logs, [text for capture in captures for text in capture.secrets])
    of_connection: tuple[list[Exchange], list[Exchange]] = ([], [])
    for pair in _pairs(captures[0].connections, captures[1].connections):
        streams = [_stream(pair, captures, sender) for sender in (CLIENT, SERVER)]
        tls = read_tls(streams[CLIENT], streams[SERVER], sessions)
        session = sessions.get(tls.client_hello.random, {}) if tls.client_hello else {}
        views = number_segments(*pair)
        last = max((_response_last(view, tls) for view in views if view is not None), default=-1)
        for side, view in enumerate(views):
            if view is not None:
                of_connection[side].append(Exchange(view=view, tls=tls, session=session, response_last=last))
    at_client, at_server = (
        _trace(capture, exchanges, kernel_drops) for capture, exchanges in zip(captures, of_connection, strict=True)
    )
    return at_client, at_server


def cached_decode_tcp(
    captures: tuple[Path, Path],
    key_logs: Sequence[Path],
    folders: tuple[Path, Path],
    *,
    kernel_drops: int | None = None,
) -> tuple[Trace, Trace]:
    """The traces in `folders`, if this decoder version made them from exactly these files. Otherwise the files are
    decoded and the traces are saved in `folders`."""
    key = pair_key(captures, key_logs, kernel_drops)
    if all(stored_key(folder) == key for folder in folders):
        try:
            return load_tables(folders[0]), load_tables(folders[1])
        except CaptureError:
            pass  # a damaged cache is replaced
    traces = decode_tcp(*captures, key_logs, kernel_drops=kernel_drops)
    for trace, folder in zip(traces, folders, strict=True):
        save_tables(trace, folder, key=key)
    return traces


Pair = tuple[TcpConnection | None, TcpConnection | None]


def _pairs(clients: Sequence[TcpConnection], servers: Sequence[TcpConnection]) -> list[Pair]:
    """The connections of both captures in pairs. First come pairs with equal initial sequence numbers. Connections that
    a proxy split have no equal numbers; they are paired in their order."""
    left = list(servers)
    pairs: list[Pair] = []
    alone = []
    for client in clients:
        same = next((other for other in left if _is_same(client, other)), None)
        if same is None:
            alone.append(client)
        else:
            left.remove(same)
            pairs.append((client, same))
    joined = min(len(alone), len(left))
    pairs += zip(alone[:joined], left[:joined], strict=True)
    pairs += [(connection, None) for connection in alone[joined:]]
    pairs += [(None, other) for other in left[joined:]]
    return pairs


def _is_same(first: TcpConnection, second: TcpConnection) -> bool:
    """Whether the initial sequence numbers that are in both captures are equal. One capture may lack a number, because
    a SYN-ACK was lost on the link."""
    both = [(mine, its) for mine, its in zip(first.initial, second.initial, strict=True) if None not in (mine, its)]
    return bool(both) and all(mine == its for mine, its in both)


def _stream(pair: Pair, captures: tuple[_Capture, _Capture], sender: int) -> bytes:
    """The stream of one endpoint, from the capture that contains more of it; if equal, from the capture at its own
    end."""
    order = (sender, 1 - sender)
    rows = [
        connection.stream(sender, captures[side].file.data) for side in order if (connection := pair[side]) is not None
    ]
    return max(rows, key=len, default=b"")


def _response_last(view: Numbered, tls: TlsConnection) -> int:
    """The number of the server's last segment with a byte of the response; -1 when there is none."""
    if tls.response is None:
        return -1
    start, end = tls.response
    return max(
        (
            number
            for segment, number in zip(view.connection.segments, view.numbers, strict=True)
            if segment.sender == SERVER and segment.offset < end and segment.end > start
        ),
        default=-1,
    )


def _trace(capture: _Capture, exchanges: list[Exchange], kernel_drops: int | None) -> Trace:
    tables = TcpTableBuilder().build(exchanges)
    records = len(capture.packets)
    meta = CaptureMeta(
        file_name=capture.path.name,
        sha256=hashlib.sha256(capture.stored).hexdigest(),
        link_type="ETHERNET",
        packets=records,
        non_quic=records - tables["datagrams"].num_rows,
        fragments=0,
        snapped=_snapped(capture.file),
        truncated=capture.file.truncated,
        kernel_drops=capture.file.kernel_drops if kernel_drops is None else kernel_drops,
        first_time_ns=capture.packets[0].time_ns if capture.packets else None,
        decoder_version=DECODER_VERSION,
        ip_packets=packets_by_addresses(capture.file),
    )
    return Trace(**tables, meta=meta, checks=trace_checks(tables, meta))


def _snapped(file: CaptureFile) -> int:
    return sum(end - start < length for _, _, start, end, length in file.records())
