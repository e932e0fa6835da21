"""Mutants of HTTP/3 (RFC 9114) and QPACK (RFC 9204): they add or replace frames and streams."""

from collections.abc import Callable

from lab.mutate.mutation import Mutation, Sent, mutant
from lab.mutate.recording import CLIENT, SERVER
from lab.mutate.wire import F, P, Reader, frame, stream, varint

CASES = ("http3",)
DATA, HEADERS, CANCEL_PUSH, SETTINGS, PUSH_PROMISE, GOAWAY, MAX_PUSH_ID = 0, 1, 3, 4, 5, 7, 13
CONTROL, PUSH, ENCODER, DECODER = range(4)


def h3(kind: int, data: bytes = b"") -> bytes:
    """A frame of HTTP/3."""
    return varint(kind) + varint(len(data)) + data


def contents(m: Mutation, sender: str = "") -> dict[int, bytes]:
    """The streams of a role, each from its beginning to its first gap."""
    whole: dict[int, bytes] = {}
    for number, sent in m.streams(sender).items():
        data = b""
        for _, _, each in sorted(sent.sent, key=lambda each: each[2].offset):
            if each.offset <= len(data):
                data += each.data[len(data) - each.offset :]
        whole[number] = data
    return whole


def control(m: Mutation) -> int:
    """The control stream of the role."""
    m.need("http3" in str(m.recording.folder) or "-h3" in str(m.recording.folder), "it doesn't speak HTTP/3")
    streams = [number for number, data in contents(m).items() if number & 2 and data[:1] == bytes([CONTROL])]
    return m.pick(streams, "no control stream")


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


def _on_control(rule: str, data: bytes, *roles: str, name: str, along: dict[str, str] | None = None) -> None:
    def change(m: Mutation) -> None:
        number = control(m)
        m.send(stream(number, len(contents(m)[number]), data))

    mutant(rule, *roles, cases=CASES, name=name, along=along)(change)


def _on_request(rule: str, data: bytes, *roles: str, name: str) -> None:
    """Mutants that insert bytes into a request stream after HEADERS. Before HEADERS they would break another rule."""

    def change(m: Mutation) -> None:
        number = request(m)
        reader = Reader(contents(m)[number])
        reader.varint()
        reader.block()
        insert(m, number, reader.position, data)

    mutant(rule, *roles, cases=CASES, name=name)(change)


_on_control("rfc9114-7.2.1-data-on-control", h3(DATA, b"abc"), name="data")
_on_control("rfc9114-7.2.2-headers-on-control", h3(HEADERS, b"\0\0\xd1"), name="headers")
_on_control("rfc9114-7.2.4-settings-twice", h3(SETTINGS), name="settings")
_on_control("rfc9114-7.2.5-push-promise-from-client", h3(PUSH_PROMISE, b"\0\0\0\xd1"), CLIENT, name="control")
_on_control(
    "rfc9114-7.2.5-push-promise-on-control",
    h3(PUSH_PROMISE, b"\0\0\0\xd1"),
    SERVER,
    name="control",
    along={"rfc9114-4.6-push-not-allowed": "the client allowed no push"},
)
_on_control("rfc9114-5.2-goaway-increases", h3(GOAWAY, varint(4)) + h3(GOAWAY, varint(8)), name="goaway")
_on_control("rfc9114-7.2.6-goaway-id-wrong", h3(GOAWAY, varint(3)), SERVER, name="goaway")
_on_control("rfc9114-7.2.7-max-push-id-from-server", h3(MAX_PUSH_ID, varint(3)), SERVER, name="push")
_on_control(
    "rfc9114-7.2.7-max-push-id-decreases",
    h3(MAX_PUSH_ID, varint(8)) + h3(MAX_PUSH_ID, varint(2)),
    CLIENT,
    name="push",
)
_on_control("rfc9114-7.1-frame-length-wrong", h3(GOAWAY, varint(0) + b"\0"), name="long")
_on_control("rfc9114-7.1-frame-length-wrong", h3(GOAWAY, b"\x40"), name="short")
_on_control("rfc9114-7.2.8-http2-frame", h3(6, bytes(8)), name="ping")
_on_control("rfc9114-7.2.8-http2-frame", h3(2, bytes(5)), name="priority")
_on_request("rfc9114-7.2.3-cancel-push-on-request", h3(CANCEL_PUSH, varint(0)), name="cancel")
_on_request("rfc9114-7.2.4-settings-on-request", h3(SETTINGS), name="settings")
_on_request("rfc9114-7.2.6-goaway-on-request", h3(GOAWAY, varint(0)), name="goaway")
_on_request("rfc9114-7.2.7-max-push-id-on-request", h3(MAX_PUSH_ID, varint(3)), CLIENT, name="push")
_on_request("rfc9114-7.2.8-http2-frame", h3(9, b"abc"), name="continuation")


@mutant("rfc9114-4.1-data-before-headers", cases=CASES)
def _data_first(m: Mutation) -> None:
    insert(m, request(m), 0, h3(DATA, b"abc"))


@mutant(
    "rfc9114-4.1-frame-after-trailers",
    SERVER,
    cases=CASES,
    along={"rfc9114-4.1.2-content-length-wrong": "the content is longer"},
)
def _after_trailers(m: Mutation) -> None:
    number = request(m)
    reader = Reader(contents(m)[number])
    reader.varint()
    reader.block()
    trailers = h3(HEADERS, b"\0\0")
    insert(m, number, reader.position, h3(DATA, b"a") + trailers)


@mutant("rfc9114-4.1-request-not-finished", CLIENT, cases=CASES)
def _unfinished(m: Mutation) -> None:
    number = request(m)
    for datagram, packet, each in m.streams()[number].sent:
        if each.fin:
            new = each.but(type=each.type & ~1)
            m.replace((datagram, packet), each, new if each.data else frame(F.PING))


@mutant("rfc9114-7.1-frame-cut-off", CLIENT, cases=CASES)
def _cut_off(m: Mutation) -> None:
    number = request(m)
    insert(m, number, len(contents(m)[number]), h3(0x21, b"abc")[:-1])


def _first_of_control(m: Mutation) -> tuple[int, bytes, int]:
    """The control stream, the payload of its SETTINGS, and the offset after SETTINGS."""
    number = control(m)
    reader = Reader(contents(m)[number], 1)
    m.need(reader.varint() == SETTINGS, "no SETTINGS")
    payload = reader.block()
    return number, payload, reader.position


@mutant("rfc9114-6.2.1-first-frame-not-settings", cases=CASES)
def _not_first(m: Mutation) -> None:
    insert(m, control(m), 1, h3(0x21, b"abc"))


def _setting(rule: str, data: bytes | None, name: str) -> None:
    def change(m: Mutation) -> None:
        number, payload, end = _first_of_control(m)
        extra = data
        if extra is None:
            reader = Reader(payload)
            m.need(payload, "no setting")
            reader.varint()
            reader.varint()
            extra = payload[: reader.position]
        insert(m, number, 1, h3(SETTINGS, payload + extra), cut=end - 1)

    mutant(rule, cases=CASES, name=name)(change)


_setting("rfc9114-7.2.4-setting-twice", None, "first")
_setting("rfc9114-7.2.4.1-http2-setting", varint(0x04) + varint(65535), "window")
_setting("rfc9114-7.2.4.1-http2-setting", varint(0x02) + varint(0), "push")


@mutant("rfc9114-6.2.1-no-control-stream", cases=CASES)
def _no_control(m: Mutation) -> None:
    insert(m, control(m), 0, varint(0x21), cut=1)


@mutant("rfc9114-6.2.1-control-stream-closed", cases=CASES)
def _closed(m: Mutation) -> None:
    number = control(m)
    m.send(stream(number, len(contents(m)[number]), b"", fin=True))


@mutant("rfc9114-6.2.1-control-stream-stopped", cases=CASES)
def _stopped(m: Mutation) -> None:
    number = control(Mutation(m.recording, m.connection, m.peer, m.rng))
    opened = m.streams(m.peer)[number].sent[0][0]
    m.need(opened.arrived, "what opens the control stream was lost")
    after = [each for each in m.hosts() if each[0].sent_ns > opened.seen[m.role].time_ns]
    m.send_after(m.pick(after, "nothing is sent after it"), frame(F.STOP_SENDING, stream=number, code=0))


def _new_stream(m: Mutation, data: bytes) -> None:
    control(m)
    unused = 4 + max(number for number in m.streams() if number & 2)
    m.set_parameter(P.MAX_STREAMS_UNI, 100, m.peer)
    m.send(stream(unused, 0, data))


@mutant("rfc9114-6.2.1-two-control-streams", cases=CASES)
def _two(m: Mutation) -> None:
    _new_stream(m, bytes([CONTROL]) + h3(SETTINGS))


@mutant("rfc9114-6.2.2-push-stream-from-client", CLIENT, cases=CASES)
def _client_push(m: Mutation) -> None:
    _new_stream(m, bytes([PUSH]) + varint(0))


@mutant("rfc9114-4.6-push-not-allowed", SERVER, cases=CASES)
def _push(m: Mutation) -> None:
    _new_stream(m, bytes([PUSH]) + varint(0) + h3(HEADERS, b"\0\0\xd9"))


@mutant(
    "rfc9114-6.1-server-bidirectional-stream",
    SERVER,
    cases=CASES,
    along={"rfc9114-4.3-pseudo-headers": "the server sends a request"},
)
def _bidirectional(m: Mutation) -> None:
    control(m)
    m.set_parameter(P.MAX_STREAMS_BIDI, 100, CLIENT)
    m.set_parameter(P.MAX_STREAM_DATA_BIDI_REMOTE, 10000, CLIENT)
    m.send(stream(1, 0, h3(HEADERS, b"\0\0\xd1")))


@mutant(
    "rfc9114-6.2-too-few-streams-granted",
    cases=CASES,
    along={"rfc9000-4.6-too-many-streams": "the peer uses three"},
)
def _few(m: Mutation) -> None:
    control(m)
    m.set_parameter(P.MAX_STREAMS_UNI, 2)


# Behind the first bytes of a stream


@mutant("rfc9114-7.2.4-settings-on-request", SERVER, cases=CASES, name="behind-content")
def _settings_behind(m: Mutation) -> None:
    control(m)
    number = m.pick([each for each, data in contents(m).items() if each % 4 == 0 and len(data) > 1024], "no long body")
    insert(m, number, len(contents(m)[number]), h3(SETTINGS))


# Fields


def _section(m: Mutation, change: Callable[[bytes], bytes]) -> None:
    """Change the first field section of a request stream."""
    number = request(m)
    reader = Reader(contents(m)[number])
    m.need(reader.varint() == HEADERS, "it doesn't begin with HEADERS")
    block = reader.block()
    insert(m, number, 0, h3(HEADERS, change(block)), cut=reader.position)


def _line(name: bytes, value: bytes) -> bytes:
    """A field line with a literal name (RFC 9204 §4.5.6)."""
    length = bytes([0x20 | len(name)]) if len(name) < 7 else bytes([0x27, len(name) - 7])
    return length + name + bytes([len(value)]) + value


def _adds(rule: str, line: bytes, *roles: str, name: str) -> None:
    def change(m: Mutation) -> None:
        _section(m, lambda block: block + line)

    mutant(rule, *roles, cases=CASES, name=name)(change)


_adds("rfc9114-4.2-upper-case-name", _line(b"X-Name", b"a"), name="upper")
_adds("rfc9114-4.2-connection-field", _line(b"upgrade", b"a"), name="upgrade")
_adds("rfc9114-4.3-pseudo-headers", _line(b":status", b"200"), CLIENT, name="status")
_adds("rfc9114-4.3-pseudo-headers", _line(b":path", b"/"), SERVER, name="path")
_adds("rfc9114-4.3-pseudo-headers", _line(b"a", b"b") + b"\xd1", CLIENT, name="late")
_adds("rfc9204-2.2.3-invalid-reference", b"\x85", name="line")
_adds("rfc9204-3.1-static-index-high", b"\xff\x40", name="line")
# A value of Content-Length that no file has.
_adds("rfc9114-4.1.2-content-length-wrong", b"\x54\x0513579", name="field")


@mutant("rfc9114-4.4-connect", CLIENT, cases=CASES)
def _connect(m: Mutation) -> None:
    _section(m, lambda _: b"\0\0\xcf\xd7\xc1")  # :method CONNECT, :scheme https, :path /


# Pushes


def _allow(m: Mutation, most: int) -> Sent:
    """Let the client allow pushes. Returns a packet that the server sends later."""
    client = Mutation(m.recording, m.connection, CLIENT, m.rng)
    sent = client.streams()[control(client)].sent
    allowed, packet, last = max(sent, key=lambda each: each[2].end)
    m.need(allowed.arrived, "the control stream was lost")
    client.replace((allowed, packet), last, last.but(data=last.data + h3(MAX_PUSH_ID, varint(most))))
    m.set_parameter(P.MAX_STREAMS_UNI, 100, CLIENT)
    return m.pick([each for each in m.hosts() if each[0].sent_ns > allowed.seen[SERVER].time_ns], "it sends no more")


def _unused(m: Mutation, at: int = 1) -> int:
    return 4 * at + max(number for number in m.streams() if number & 2)


def _pushed(identifier: int) -> bytes:
    return bytes([PUSH]) + varint(identifier) + h3(HEADERS, b"\0\0\xd9")


@mutant("rfc9114-7.2.5-push-id-above-limit", SERVER, cases=CASES, name="stream")
def _push_above(m: Mutation) -> None:
    m.send_after(_allow(m, 2), stream(_unused(m), 0, _pushed(m.rng.randrange(3, 60))))


@mutant("rfc9114-6.2.2-push-id-reused", SERVER, cases=CASES)
def _push_twice(m: Mutation) -> None:
    m.send_after(_allow(m, 2), stream(_unused(m), 0, _pushed(1)), stream(_unused(m, 2), 0, _pushed(1)))


_on_control("rfc9114-7.2.3-cancel-push-above-limit", h3(CANCEL_PUSH, varint(5)), name="cancel")
_on_request("rfc9114-4.6-push-not-allowed", h3(PUSH_PROMISE, b"\0\0\0\xd1\xd7\xc1"), SERVER, name="promise")


# QPACK


def _qpack(m: Mutation, kind: int, data: bytes, *, fin: bool = False) -> None:
    """Send instructions on the encoder stream or decoder stream of the role, which is opened if there is none."""
    control(m)
    streams = [(number, whole) for number, whole in contents(m).items() if number & 2 and whole[:1] == bytes([kind])]
    if streams:
        number, whole = streams[0]
        m.send(stream(number, len(whole), data, fin=fin))
    else:
        m.set_parameter(P.MAX_STREAMS_UNI, 100, m.peer)
        m.send(stream(_unused(m), 0, bytes([kind]) + data, fin=fin))


def _instructs(rule: str, kind: int, data: bytes, name: str, *, fin: bool = False) -> None:
    mutant(rule, cases=CASES, name=name)(lambda m: _qpack(m, kind, data, fin=fin))


_instructs("rfc9204-4.3.1-capacity-high", ENCODER, b"\x3f\xff\xff\xff\x7f", "capacity")
_instructs("rfc9204-3.2.2-entry-too-large", ENCODER, b"\x20\x41a\x01b", "entry")
_instructs("rfc9204-2.2.3-invalid-reference", ENCODER, b"\x1e", "duplicate")
_instructs("rfc9204-4.4.3-increment-wrong", DECODER, b"\0", "nothing")
_instructs("rfc9204-4.4.3-increment-wrong", DECODER, b"\x3f\x40", "beyond")
_instructs("rfc9204-4.4.1-acknowledgment-wrong", DECODER, b"\xfe", "no-stream")
_instructs("rfc9204-4.2-stream-closed", ENCODER, b"", "encoder", fin=True)
_instructs("rfc9204-4.2-stream-closed", DECODER, b"", "decoder", fin=True)


def _two_of(rule: str, kind: int) -> None:
    def change(m: Mutation) -> None:
        _qpack(m, kind, b"")
        m.set_parameter(P.MAX_STREAMS_UNI, 100, m.peer)
        m.send(stream(_unused(m, 2), 0, bytes([kind])))

    mutant(rule, cases=CASES, name="two")(change)


_two_of("rfc9204-4.2-two-encoder-streams", ENCODER)
_two_of("rfc9204-4.2-two-decoder-streams", DECODER)


@mutant("rfc9204-4.2-stream-stopped", SERVER, cases=CASES)
def _qpack_stopped(m: Mutation) -> None:
    streams = contents(m, m.peer).items()
    number = m.pick([number for number, data in streams if number & 2 and data[:1] in (b"\2", b"\3")], "no QPACK")
    opened = m.streams(m.peer)[number].sent[0][0]
    m.need(opened.arrived, "what opens the stream was lost")
    after = [each for each in m.hosts() if each[0].sent_ns > opened.seen[m.role].time_ns]
    m.send_after(m.pick(after, "nothing is sent after it"), frame(F.STOP_SENDING, stream=number, code=0))
