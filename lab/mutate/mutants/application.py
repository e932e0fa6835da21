"""Mutants of HTTP/3 (RFC 9114) and QPACK (RFC 9204): they add or replace frames and streams."""

from collections.abc import Callable

from lab.mutate.mutation import Mutation, Sent, mutant
from lab.mutate.recording import CLIENT, SERVER, assembled
from lab.mutate.wire import F, P, Reader, frame, stream, varint

CASES = ("http3",)
DATA, HEADERS, CANCEL_PUSH, SETTINGS, PUSH_PROMISE, GOAWAY, MAX_PUSH_ID = 0, 1, 3, 4, 5, 7, 13
CONTROL, PUSH, ENCODER, DECODER = range(4)


def h3(kind: int, data: bytes = b"") -> bytes:
    """A frame of HTTP/3."""
    return varint(kind) + varint(len(data)) + data


def contents(m: Mutation, sender: str = "") -> dict[int, bytes]:
    """The streams of a role, each from its beginning to its first gap."""
    return {
        number: assembled((each.offset, each.data) for _, _, each in sent.sent)
        for number, sent in m.streams(sender).items()
    }


def control(m: Mutation) -> int:
    """The control stream of the role."""
    m.need("http3" in str(m.recording.folder) or "-h3" in str(m.recording.folder), "it doesn't speak HTTP/3")
    streams = [number for number, data in contents(m).items() if number & 2 and data[:1] == bytes([CONTROL])]
    return m.pick(streams, "no control stream")


def add_to_control(m: Mutation, data: bytes) -> None:
    """Add bytes to the control stream."""
    number = control(m)
    m.send(stream(number, len(contents(m)[number]), data))


def add_to_request(m: Mutation, data: bytes) -> None:
    """Insert bytes into a request stream after HEADERS. Before HEADERS they would break another rule."""
    number = request(m)
    reader = Reader(contents(m)[number])
    reader.varint()
    reader.block()
    insert(m, number, reader.position, data)


def add_setting(m: Mutation, data: bytes | None) -> None:
    """Add bytes to SETTINGS; None: the first setting again."""
    number = control(m)
    reader = Reader(contents(m)[number], 1)
    m.need(reader.varint() == SETTINGS, "no SETTINGS")
    payload = reader.block()
    if data is None:
        settings = Reader(payload)
        m.need(payload, "no setting")
        settings.varint()
        settings.varint()
        data = payload[: settings.position]
    insert(m, number, 1, h3(SETTINGS, payload + data), cut=reader.position - 1)


def request(m: Mutation) -> int:
    """A request stream on which the role sent something."""
    control(m)
    return m.pick([number for number in m.streams() if number % 4 == 0], "no request")


def insert(m: Mutation, number: int, at: int, data: bytes, *, cut: int = 0) -> None:
    """Put bytes into a stream in the place of `cut` bytes. The bytes after them move."""
    whole = contents(m)[number]
    new = whole[:at] + data + whole[at + cut :]
    grown = len(data) - cut

    def moved(offset: int) -> int:
        return offset if offset <= at else max(at, offset + grown)

    done = False
    for datagram, packet, each in m.streams()[number].sent:
        low, high = moved(each.offset), moved(each.end)
        if each.end == at == len(whole) and not each.fin:
            continue
        if each.offset <= at <= each.end:
            high, done = each.end + grown, True
        m.replace(
            (datagram, packet), each, each.but(offset=low, data=new[low:high]) if low else each.but(data=new[low:high])
        )
    if not done:
        m.send(stream(number, at, data))


def stop(m: Mutation, number: int) -> None:
    """Send STOP_SENDING for a stream of the peer."""
    opened = m.streams(m.peer)[number].sent[0][0]
    m.need(opened.arrived, "what opens the stream was lost")
    after = [each for each in m.hosts() if each[0].sent_ns > opened.seen[m.role].time_ns]
    m.send_after(m.pick(after, "nothing is sent after it"), frame(F.STOP_SENDING, stream=number, code=0))


@mutant("rfc9114-6.1-server-bidirectional-stream", SERVER, cases=CASES)
def _bidirectional(m: Mutation) -> None:
    control(m)
    m.set_parameter(P.MAX_STREAMS_BIDI, 100, CLIENT)
    m.set_parameter(P.MAX_STREAM_DATA_BIDI_REMOTE, 10000, CLIENT)
    m.send(stream(1, 0, h3(HEADERS, b"\0\0\xd1")))


def change_section(m: Mutation, change: Callable[[bytes], bytes]) -> None:
    """Change the first field section of a request stream."""
    number = request(m)
    reader = Reader(contents(m)[number])
    m.need(reader.varint() == HEADERS, "it doesn't begin with HEADERS")
    block = reader.block()
    insert(m, number, 0, h3(HEADERS, change(block)), cut=reader.position)


def line(name: bytes, value: bytes) -> bytes:
    """A field line with a literal name (RFC 9204 §4.5.6)."""
    length = bytes([0x20 | len(name)]) if len(name) < 7 else bytes([0x27, len(name) - 7])
    return length + name + bytes([len(value)]) + value


def allow_pushes(m: Mutation, most: int) -> Sent:
    """Let the client allow pushes. Returns a packet that the server sends later."""
    client = m.by(CLIENT)
    sent = client.streams()[control(client)].sent
    allowed, packet, last = max(sent, key=lambda each: each[2].end)
    m.need(allowed.arrived, "the control stream was lost")
    client.replace((allowed, packet), last, last.but(data=last.data + h3(MAX_PUSH_ID, varint(most))))
    m.set_parameter(P.MAX_STREAMS_UNI, 100, CLIENT)
    return m.pick([each for each in m.hosts() if each[0].sent_ns > allowed.seen[SERVER].time_ns], "it sends no more")


def unused(m: Mutation, at: int = 1) -> int:
    """The first unidirectional stream that the role has not used, or the `at`-th."""
    return 4 * at + max(number for number in m.streams() if number & 2)


def open_stream(m: Mutation, data: bytes, *, at: int = 1, fin: bool = False) -> None:
    """Begin a unidirectional stream with these bytes. `at`: as in `unused`."""
    m.set_parameter(P.MAX_STREAMS_UNI, 100, m.peer)
    m.send(stream(unused(m, at), 0, data, fin=fin))


def pushed(identifier: int) -> bytes:
    """The bytes of a push stream."""
    return bytes([PUSH]) + varint(identifier) + h3(HEADERS, b"\0\0\xd9")


def instruct(m: Mutation, kind: int, data: bytes, *, fin: bool = False) -> None:
    """Send instructions on the encoder stream or decoder stream of the role, which is opened if there is none."""
    control(m)
    streams = [(number, whole) for number, whole in contents(m).items() if number & 2 and whole[:1] == bytes([kind])]
    if streams:
        number, whole = streams[0]
        m.send(stream(number, len(whole), data, fin=fin))
    else:
        open_stream(m, bytes([kind]) + data, fin=fin)
