"""The list of all sins, and the sin that this endpoint must commit."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

CLIENT, SERVER = frozenset({"client"}), frozenset({"server"})
BOTH = CLIENT | SERVER


@dataclass(frozen=True)
class Sin:
    """A sin: its roles, its description, the section that it breaks, and its values (times in s, sizes in bytes)."""

    roles: frozenset[str]
    text: str
    section: str
    values: Mapping[str, float] | None = None


SINS: dict[str, Sin] = {
    # Protocol: sins that test cases find
    "wrong-alpn": Sin(CLIENT, "offers only hq-29", "RFC 7301 §3.1"),
    "wrong-version": Sin(CLIENT, "uses version 2 although the case does not require it", "RFC 9000 §15"),
    "wrong-vn-ids": Sin(
        SERVER, "from the second Version Negotiation packet on, uses random connection IDs", "RFC 9000 §17.2.1"
    ),
    "vn-lists-offered": Sin(SERVER, "Version Negotiation lists the version that was offered", "RFC 9000 §6.1"),
    "vn-leaves-out": Sin(
        SERVER, "Version Negotiation doesn't list `version`, which it accepts", "RFC 9000 §6.1", {"version": 1}
    ),
    "silent-on-versions": Sin(
        SERVER, "answers only the first packet of an unknown version, which comes from the harness", "RFC 9000 §6.1"
    ),
    "offers-version-1": Sin(CLIENT, "offers version 1 instead of an unknown version", "RFC 9000 §15"),
    "takes-unlisted": Sin(
        CLIENT, "after Version Negotiation, continues in version 2, even if it is not listed", "RFC 9368 §2.1"
    ),
    "forgets-late-parts": Sin(
        SERVER, "drops parts of a ClientHello that arrive before its beginning, and acknowledges them", "RFC 9000 §7"
    ),
    "never-shrinks": Sin(
        SERVER,
        "no sin by itself: always sends datagrams of `size` bytes, even when all are lost",
        "RFC 8899 §4.3",
        {"size": 1350},
    ),
    "second-connection": Sin(CLIENT, "opens a connection before the one that it needs", "RFC 9001 §4.1.1"),
    "one-at-a-time": Sin(CLIENT, "requests each file only after the previous file has arrived", "RFC 9000 §2"),
    "closes-with-error": Sin(CLIENT, "closes with application error 1 although everything succeeded", "RFC 9000 §10.2"),
    "corrupt-file": Sin(BOTH, "changes the first byte of each file", "RFC 9000 §2.2"),
    "short-file": Sin(BOTH, "leaves out the last byte of each file", "RFC 9000 §2.2"),
    "extra-file": Sin(CLIENT, "saves a file that was not requested", "contract"),
    "all-suites": Sin(CLIENT, "offers all suites instead of one", "RFC 8446 §B.4"),
    "unoffered-suite": Sin(SERVER, "chooses AES-128-GCM, even if it was not offered", "RFC 8446 §4.1.3"),
    "no-probe": Sin(CLIENT, "waits 10 s for an answer before it probes", "RFC 9002 §6.2.2"),
    "never-retries": Sin(SERVER, "sends no Retry in the case that requires it", "RFC 9000 §8.1.2"),
    "always-retries": Sin(SERVER, "sends Retry in cases that do not require it", "RFC 9000 §8.1.2"),
    "wrong-retry-tag": Sin(SERVER, "sends a Retry whose integrity tag is wrong", "RFC 9001 §5.8"),
    "no-retry-token": Sin(CLIENT, "answers Retry without its token", "RFC 9000 §17.2.5.3"),
    "resets-packet-number": Sin(CLIENT, "begins at packet number 0 again after Retry", "RFC 9000 §17.2.5.3"),
    "resumes-at-once": Sin(
        CLIENT, "resumes a session on its first connection, with the built-in ticket", "RFC 8446 §2.2"
    ),
    "forgets-tickets": Sin(SERVER, "sends its certificate on resumption: it knows no ticket", "RFC 8446 §2.2"),
    "no-early-data": Sin(CLIENT, "sends no 0-RTT", "RFC 9001 §4.6.1"),
    "refuses-early-data": Sin(SERVER, "resumes the session, but drops 0-RTT", "RFC 9001 §4.6.2"),
    "no-control-stream": Sin(BOTH, "HTTP/3 without unidirectional streams", "RFC 9114 §6.2.1"),
    "no-key-update": Sin(
        BOTH, "keeps key phase 0: the client never begins an update, the server never follows", "RFC 9001 §6"
    ),
    "no-ect": Sin(BOTH, "sends Not-ECT in the case `ecn`", "RFC 9000 §13.4.2"),
    "no-ecn-counts": Sin(BOTH, "acknowledges marked packets without counts", "RFC 9000 §13.4.1"),
    "high-ecn-counts": Sin(BOTH, "reports twice the marks that it received", "RFC 9000 §13.4.2.1"),
    "no-ce-counts": Sin(BOTH, "reports CE as ECT(0)", "RFC 9000 §13.4.1"),
    "no-upgrade": Sin(BOTH, "knows no version 2", "RFC 9368 §2.3"),
    "over-ipv4": Sin(CLIENT, "always connects to 193.167.100.100", "contract"),
    "amplifies": Sin(SERVER, "sends more than three times what it received before validation", "RFC 9000 §8.1"),
    "no-path-challenge": Sin(BOTH, "uses new paths without a challenge", "RFC 9000 §8.2"),
    "no-path-response": Sin(BOTH, "doesn't answer PATH_CHALLENGE", "RFC 9000 §8.2.2"),
    "no-migration": Sin(CLIENT, "ignores the server's preferred address", "RFC 9000 §9.6.1"),
    "migrates": Sin(
        CLIENT, "no sin by itself: moves to another local port, with a new connection ID", "RFC 9000 §9.2", {"at": 0.2}
    ),
    "keeps-connection-id": Sin(
        BOTH,
        "the client moves to another port; both keep the connection ID over a migration",
        "RFC 9000 §9.5",
        {"at": 0.2},
    ),
    "exceeds-flow-control": Sin(SERVER, "sends beyond MAX_DATA and MAX_STREAM_DATA", "RFC 9000 §4.1"),
    "never-extends-windows": Sin(
        CLIENT, "sends neither MAX_DATA nor MAX_STREAM_DATA", "RFC 9000 §4.2", {"window": 1 << 16}
    ),
    "many-streams": Sin(SERVER, "allows many streams from the start", "RFC 9000 §4.6", {"streams": 5000}),
    "never-raises-streams": Sin(SERVER, "never sends MAX_STREAMS", "RFC 9000 §4.6"),
    "exceeds-streams": Sin(CLIENT, "opens more streams than it may", "RFC 9000 §4.6"),
    "reuses-packet-numbers": Sin(
        BOTH, "sends a packet with a number that was used before", "RFC 9000 §12.3", {"every": 20}
    ),
    # Sending: sins that diagnoses find
    "numbers-go-back": Sin(BOTH, "skips packet numbers, and uses them later", "RFC 9000 §12.3", {"every": 20}),
    "sends-twice": Sin(BOTH, "sends every datagram twice", "RFC 9000 §12.3"),
    "retransmits-early": Sin(
        SERVER,
        "repeats the data of one packet in `every`, `after` s after it was sent",
        "RFC 9002 §6.1",
        {"every": 5, "after": 0.02},
    ),
    "out-of-order": Sin(
        SERVER,
        "holds one datagram in `every` back until `by` other datagrams were sent",
        "RFC 9002 §6.1.1",
        {"every": 20, "by": 8},
    ),
    "bursts": Sin(
        SERVER,
        "no pacing: sends `window` bytes at `rate` bit/s once in `every` s, then nothing",
        "RFC 9002 §7.7",
        {"every": 0.6, "window": 300_000, "rate": 40e6},
    ),
    "small-datagrams": Sin(BOTH, "datagrams of `size` bytes after the handshake", "RFC 9000 §14", {"size": 600}),
    "tiny-window": Sin(
        CLIENT, "a receive window of `window` bytes that doesn't grow", "RFC 9000 §4.2", {"window": 1 << 16}
    ),
    "answers-late": Sin(SERVER, "waits `time` s before it answers a request", "RFC 9002 §7.8", {"time": 1}),
    "stalls": Sin(SERVER, "sends no data for `time` s, from `at` s on", "RFC 9002 §7.8", {"at": 3, "time": 2}),
    "collapses": Sin(
        SERVER, "a congestion window of `window` bytes from `at` s on", "RFC 9002 §7.2", {"at": 3, "window": 150_000}
    ),
    "leaves-slow-start": Sin(
        SERVER, "slow start ends at `window` bytes without a loss", "RFC 9002 §7.3.1", {"window": 60_000}
    ),
    "sometimes-slow": Sin(
        SERVER,
        "in a random half of its processes, a congestion window of `window` bytes",
        "thesis §5.6.5",
        {"window": 30_000},
    ),
    "ignores-ce": Sin(SERVER, "continues as before when CE is reported", "RFC 9002 §7.1"),
    "raises-mtu": Sin(
        SERVER,
        "no sin: datagrams of `size` bytes, and of 1200 bytes after six in a row were lost",
        "RFC 9000 §14.3",
        {"size": 1400},
    ),
    "acks-everything": Sin(CLIENT, "an ACK for every packet, padded to `size` bytes", "RFC 9000 §13.2", {"size": 200}),
}


@dataclass(frozen=True)
class Chosen:
    """The chosen sin with its values; an empty name means no sin."""

    name: str
    values: Mapping[str, float]
    steady: int = 0
    """Bytes of a constant, paced congestion window. 0: aioquic's own window."""

    def __call__(self, name: str) -> bool:
        """Whether `name` is the chosen sin."""
        return self.name == name

    def value(self, name: str) -> float:
        """A value of the chosen sin."""
        return self.values[name]

    @property
    def sentence(self) -> str:
        """The sentence that is printed at the start."""
        steady = f", steady={self.steady}" if self.steady else ""
        if not self.name:
            return f"sin: none{steady}"
        values = "".join(f" {name}={value:g}" for name, value in self.values.items())
        return f"sin: {self.name}{values}{steady} ({SINS[self.name].text})"


def chosen(role: str) -> Chosen:
    """The sin of CLIENT_PARAMS or SERVER_PARAMS: `sin=NAME VALUE=… …`. A server also takes `steady=BYTES`, with or
    without a sin. Ends the process for an unknown sin or value."""
    words = os.environ.get(f"{role.upper()}_PARAMS", "").replace(",", " ").split()
    settings = dict(word.partition("=")[::2] for word in words)
    name = settings.pop("sin", "")
    steady = int(_number("steady", settings.pop("steady", "0"))) if role == "server" else 0
    if not name and not settings:
        return Chosen("", {}, steady)
    able = {known: sin for known, sin in SINS.items() if role in sin.roles}
    if name not in able:
        sys.exit(f"There is no sin '{name}' of a {role}. Choices: {', '.join(able)}.")
    values = dict(able[name].values or {})
    for key, text in settings.items():
        if key not in values:
            sys.exit(f"{name} has no value '{key}'. Choices: {', '.join(values) or 'none'}.")
        values[key] = _number(key, text)
    return Chosen(name, values, steady)


def _number(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        sys.exit(f"{key} is a number, not '{text}'.")
