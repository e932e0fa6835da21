"""A TLS 1.3 session that is made with Python's `ssl` and cut into TCP segments, with the captures on both sides of a
link. The captures are made by hand.

OpenSSL writes the records and the key log; no code of the decoder is used.
"""

import ssl
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner.inputs.inputs import certificates

CLIENT, SERVER = bytes((193, 167, 0, 100)), bytes((193, 167, 100, 100))
MSS = 1400
DELAY = 0.3  # one-way delay in seconds
_SYN, _FIN, _ACK, _PUSH = 0x02, 0x01, 0x10, 0x08
_WINDOW_SCALE = 7


@dataclass
class Tls:
    """The sent bytes of both sides, and the offset of each part in the server's stream."""

    client: bytes = b""
    server: bytes = b""
    marks: dict[str, int] = field(default_factory=dict)


def step(call: Callable[[], object]) -> bool:
    """True when the call is complete without more bytes from the peer."""
    try:
        call()
    except ssl.SSLWantReadError:
        return False
    return True


def http2_frame(kind: int, payload: bytes, *, stream: int = 1, flags: int = 0) -> bytes:
    """An HTTP/2 frame (RFC 9113 §4.1)."""
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def talk(folder: Path, *, alpn: str, content: bytes) -> Tls:
    """Make a session: handshake, a request, a response with `content`, close_notify. Writes `keys.log`."""
    for name, data in certificates().files().items():
        (folder / name).write_bytes(data)
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(folder / "cert.pem", folder / "priv.key")
    client_context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    client_context.keylog_filename = str(folder / "keys.log")
    for context in (server_context, client_context):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.set_alpn_protocols([alpn])
    inbox, outbox = [ssl.MemoryBIO(), ssl.MemoryBIO()], [ssl.MemoryBIO(), ssl.MemoryBIO()]
    client = client_context.wrap_bio(inbox[0], outbox[0], server_hostname="server4")
    server = server_context.wrap_bio(inbox[1], outbox[1], server_side=True)
    tls = Tls()

    def from_client() -> None:
        data = outbox[0].read()
        tls.client += data
        inbox[1].write(data)

    def from_server() -> None:
        data = outbox[1].read()
        tls.server += data
        inbox[0].write(data)

    step(client.do_handshake)
    from_client()
    step(server.do_handshake)
    from_server()
    assert step(client.do_handshake)
    tls.marks["finished"] = len(tls.server)
    client.write(b"GET /file HTTP/1.1\r\n\r\n" if alpn != "h2" else http2_frame(4, b"") + http2_frame(1, b"request"))
    from_client()
    assert step(server.do_handshake)
    from_server()
    server.read(4096)
    _respond(server, alpn, content, lambda: tls.marks.update(response=len(tls.server) + outbox[1].pending))
    from_server()
    tls.marks["end"] = len(tls.server)
    step(server.unwrap)
    from_server()
    return tls


def _respond(server: ssl.SSLObject, alpn: str, content: bytes, begins: Callable[[], None]) -> None:
    if alpn != "h2":
        begins()
        server.write(b"HTTP/1.1 200 OK\r\n\r\n")
        for at in range(0, len(content), 16384):
            server.write(content[at : at + 16384])
        return
    server.write(http2_frame(4, bytes(6)))
    begins()
    server.write(http2_frame(1, b"header", flags=4))
    for at in range(0, len(content), 8192):
        server.write(http2_frame(0, content[at : at + 8192]))
    server.write(http2_frame(0, bytes((14, *bytes(14))), flags=1 | 8))  # only padding; the first byte is its length


@dataclass(frozen=True, kw_only=True)
class Sent:
    """One sent segment. `offset`: in the stream; None: a SYN. `arrives`: seconds until it arrives; None: lost."""

    at: float
    sender: int
    offset: int | None
    data: bytes = b""
    acknowledged: int | None = None
    sacked: tuple[tuple[int, int], ...] = ()
    fin: bool = False
    arrives: float | None = DELAY
    identification: int = 0


class Wire:
    """Both captures of the segments of one connection. `initials`: sequence numbers of the SYNs."""

    def __init__(
        self, *, initials: tuple[int, int] = (1000, 2**32 - 5000), port: int = 40000, window: int = 1 << 20
    ) -> None:
        self.initials = initials
        self.port = port
        self.window = window  # constant receive window of both endpoints in bytes

    def write(self, folder: Path, segments: Sequence[Sent], *, snap: int = 65535) -> tuple[Path, Path]:
        """Write `left.pcap` at the client's side and `right.pcap` at the server's side, each with the segments that
        pass there."""
        passing: tuple[list[tuple[float, Sent]], list[tuple[float, Sent]]] = ([], [])
        for segment in segments:
            passing[segment.sender].append((segment.at, segment))
            if segment.arrives is not None:
                passing[1 - segment.sender].append((segment.at + segment.arrives, segment))
        paths = folder / "left.pcap", folder / "right.pcap"
        for path, those in zip(paths, passing, strict=True):
            data = struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, 1)
            for time, segment_sent in sorted(those, key=lambda each: each[0]):
                frame = b"\x02" * 12 + b"\x08\x00" + self._packet(segment_sent)
                nanoseconds = round(time * 1e9) + 10**18
                kept = frame[:snap]
                data += struct.pack("<IIII", *divmod(nanoseconds, 10**9), len(kept), len(frame)) + kept
            path.write_bytes(data)
        return paths

    def _packet(self, segment_sent: Sent) -> bytes:
        initial, peer = self.initials[segment_sent.sender], self.initials[1 - segment_sent.sender]
        syn = segment_sent.offset is None
        sequence = initial if segment_sent.offset is None else initial + 1 + segment_sent.offset
        flags = (_SYN if syn else 0) | (_FIN if segment_sent.fin else 0) | (_PUSH if segment_sent.data else 0)
        flags |= _ACK if segment_sent.acknowledged is not None else 0
        options = b"\x02\x04" + MSS.to_bytes(2) + b"\x01\x03\x03" + bytes((_WINDOW_SCALE,)) if syn else b""
        if segment_sent.sacked:
            blocks = b"".join(
                ((peer + 1 + edge) % 2**32).to_bytes(4) for block in segment_sent.sacked for edge in block
            )
            options += b"\x01\x01\x05" + bytes((2 + len(blocks),)) + blocks
        options += b"\0" * (-len(options) % 4)
        acknowledgement = (peer + 1 + segment_sent.acknowledged) % 2**32 if segment_sent.acknowledged is not None else 0
        ports = (self.port, 443) if segment_sent.sender == 0 else (443, self.port)
        shown = min(self.window if syn else self.window >> _WINDOW_SCALE, 65535)
        header = struct.pack(
            ">HHIIBBHHH", *ports, sequence % 2**32, acknowledgement, (20 + len(options)) // 4 << 4, flags, shown, 0, 0
        )
        segment = header + options + segment_sent.data
        ends = (CLIENT, SERVER) if segment_sent.sender == 0 else (SERVER, CLIENT)
        ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(segment), segment_sent.identification, 0, 64, 6, 0)
        return ip + ends[0] + ends[1] + segment
