"""3: three files over HTTP/3 (RFC 9114)."""

from collections.abc import Iterator

from runner.model.facts import ConnectionFacts
from runner.model.result import Finding
from runner.model.run import Kind
from runner.model.stack import HTTP3, WIRE_NAMES
from runner.units import KIB
from testcases import checks
from testcases.base import Case, CaseEvidence, keyless, proven
from testcases.links import DEFAULT

CODES = {
    "no-headers": "A request or a response has no HEADERS frame.",
    "no-settings": "A control stream does not begin with SETTINGS.",
}

_CLIENT_UNIDIRECTIONAL, _SERVER_UNIDIRECTIONAL = 2, 3  # RFC 9000 §2.1, the two low bits of a stream ID
_CONTROL = 0x00  # type of a unidirectional stream (RFC 9114 §6.2.1)
_DATA, _HEADERS, _SETTINGS = 0x00, 0x01, 0x04  # types of frames (§7.2)
_ROLES = (("client", _CLIENT_UNIDIRECTIONAL), ("server", _SERVER_UNIDIRECTIONAL))


@keyless
def control_streams_are_open(case: CaseEvidence) -> Iterator[Finding]:
    """Each endpoint opened a control stream that begins with SETTINGS (RFC 9114 §6.2.1)."""
    for connection in _connections(case):
        for role, kind in _ROLES:
            opened = [stream for stream in connection.streams if stream.stream_id % 4 == kind]
            control = [stream for stream in connection.http3 or () if (stream.sender, stream.type) == (role, _CONTROL)]
            if not opened or (connection.http3 is not None and not control):
                types = sorted(
                    {
                        stream.type
                        for stream in connection.http3 or ()
                        if stream.sender == role and stream.type is not None
                    }
                )
                others = ", ".join(f"0x{stream:02x}" for stream in types)
                finding = Finding(
                    code="no-control-stream",
                    requirement="Each endpoint opens a control stream.",
                    expected="a unidirectional stream of type 0x00",
                    actual=f"unidirectional streams of the types {others}" if others else "none",
                    role=role,
                    section="RFC 9114 §6.2.1",
                )
                yield proven(finding, *connection.landmarks.requests[:1])
            elif control and control[0].frames[:1] != (_SETTINGS,):
                finding = Finding(
                    code="no-settings",
                    requirement="The first frame of a control stream is SETTINGS.",
                    expected=f"frame type 0x{_SETTINGS:02x}",
                    actual=_types(control[0].frames[:1]),
                    role=role,
                    section="RFC 9114 §6.2.1",
                )
                yield proven(finding, control[0].place)


@keyless
def messages_have_headers(case: CaseEvidence) -> Iterator[Finding]:
    """Each request and each response has HEADERS before any DATA (RFC 9114 §4.1). Frames of other types may come first,
    such as reserved types (§7.2.8)."""
    for connection in _connections(case):
        for stream in connection.http3 or ():
            if stream.type is not None or stream.stream_id % 4:
                continue
            known = [frame for frame in stream.frames if frame in (_DATA, _HEADERS)]
            if known[:1] != [_HEADERS]:
                finding = Finding(
                    code="no-headers",
                    requirement="A request or response has HEADERS before DATA.",
                    expected=f"a frame of type 0x{_HEADERS:02x} before any DATA on stream {stream.stream_id}",
                    actual=_types(stream.frames[:3]),
                    role=stream.sender,
                    section="RFC 9114 §4.1",
                )
                yield proven(finding, stream.place)


def _connections(case: CaseEvidence) -> Iterator[ConnectionFacts]:
    """Completed connections whose packets can be read: unread 0-RTT packets could hide a control stream."""
    for connection in case.facts.connections:
        if connection.handshake_completed and not (connection.early_data_unread or case.facts.no_secrets):
            yield connection


def _types(frames: tuple[int, ...]) -> str:
    return ", ".join(f"0x{frame:02x}" for frame in frames) or "no frame"


CASE = Case(
    name="http3",
    abbreviation="3",
    kind=Kind.TEST_CASE,
    description="Files of 5, 10 and 500 KiB arrive over HTTP/3.",
    wire_name=WIRE_NAMES[HTTP3],
    protocols=(HTTP3,),
    link=DEFAULT,
    files=(5 * KIB, 10 * KIB, 500 * KIB),
    exercises=("rfc9114", "rfc9204"),
    checks=(
        *checks.COMMON,
        checks.Handshakes(1),
        checks.version_is_1,
        checks.Alpn(HTTP3),
        control_streams_are_open,
        messages_have_headers,
    ),
)
