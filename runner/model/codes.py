"""The codes of findings and errors: the meaning of each code, its matter, and its consequences.

A code is declared once. `result.json` and `evidence.json` contain codes with sentences. The sentences may change; the
codes stay the same. The code of a single case or of a detector has no consequences. So it is not declared here, but in
`CODES` of the case's module in `testcases`, or in `PATTERNS` of the detector's module in `runner/diagnose`. Rules of
the RFCs have their own ids (`runner/judge/rules`).
"""

from dataclasses import dataclass
from enum import StrEnum


class Matter(StrEnum):
    """The matter of a code: the part that is responsible, or the reason why no part is."""

    ENDPOINT = "endpoint"  # an implementation broke a MUST or the contract
    QUESTION = "question"  # the case could not be tested with this pair: unsupported, or skipped
    HARNESS = "harness"  # bentpipe, its host, a link or a remote host
    IMAGE = "image"  # a fault of an image that `check` finds before any job


@dataclass(frozen=True, kw_only=True)
class Code:
    """One code. `meaning` is a sentence without numbers."""

    name: str
    matter: Matter
    meaning: str
    again: bool = False  # True for codes of the harness after which another attempt may succeed


def _codes(matter: Matter, meanings: dict[str, str], *, again: bool = False) -> list[Code]:
    return [Code(name=name, matter=matter, meaning=meaning, again=again) for name, meaning in meanings.items()]


_ENDPOINT = {
    "client-exit": "The client ended with an exit code other than 0.",
    "client-hello-unanswered": "The server did not answer the ClientHello.",
    "client-not-started": "The engine could not start the client's first process.",
    "client-silent": "The client ended with exit code 0, without a connection and without the requested files.",
    "close-code-undefined": "A connection was closed with a code that the application protocol does not define.",
    "closed-with-error": "A connection was closed with an error.",
    "file-differs": "A downloaded file differs from the server's.",
    "files-differ": "A requested file is missing, or differs from the server's.",
    "files-extra": "The client saved files that nobody requested.",
    "foreign-packets": "UDP packets of no QUIC connection were sent.",
    "handshake-count": "The number of handshakes differs from the number that the case requires.",
    "interface-changed": "An endpoint changed its network interface, so that packets could not reach it.",
    "leak": "An eavesdropper on the satellite segment saw what the middlebox claims to hide.",
    "malformed-frames": "An endpoint sent frames that are too long for the link or have no checksum.",
    "misaddressed-frames": "An endpoint sent its packets to a MAC address that the link does not know.",
    "no-control-stream": "An endpoint opened no HTTP/3 control stream.",
    "no-ecn-counts": "ACKs carry no ECN counts.",
    "no-ect": "Packets carry no ECN codepoint.",
    "no-key-update": "An endpoint did not update its keys.",
    "old-path-kept": "The server kept sending to the old path.",
    "output-flood": "An endpoint printed more than the limit.",
    "packet-flood": "An endpoint sent many times more bytes than the files need.",
    "packet-number-reused": "A packet number was used twice.",
    "packet-without-frames": "A packet has no frame.",
    "page-incomplete": "The browser did not load every object of the page.",
    "path-challenge-unanswered": "A PATH_CHALLENGE was not answered.",
    "path-not-challenged": "A new path was used without a PATH_CHALLENGE.",
    "server-exit": "The server ended before the client.",
    "server-not-ready": "The server did not answer an unknown version in time.",
    "server-not-started": "The engine could not start the server's first process.",
    "stream-limit-high": "The server allowed more streams at once than the case permits.",
    "timeout": "The client was still running at the case's time-out.",
    "unexpected-retry": "The server sent Retry where the case forbids it.",
    "volume-full": "An endpoint filled one of its folders.",
    "wrong-alpn": "The endpoints negotiated another application protocol than the case requires.",
    "wrong-version": "The connection used another QUIC version than the case requires.",
}
_QUESTION = {
    "declared-unsupported": "The pair can't run the case by its own declaration.",
    "handshake-failed": "The pair transferred no file in `handshake`.",
    "no-probe": "The client sent no probe.",
    "not-compliant": "The image does not answer unknown test cases with exit code 127.",
    "unsupported": "An endpoint answered the test case with exit code 127.",
}
_FOR_GOOD = {
    "analysis-limit": "Judging took too much time or memory.",
    "bypassed": "Traffic crossed the satellite segment in another way than the middlebox declares.",
    "early-data-unread": "0-RTT packets could not be decrypted, and nothing else decides the case.",
    "impairment-missed": "The link's impairment hit no packet of this connection.",
    "no-capture": "A capture is missing or broken.",
    "no-connection": "The captures contain no QUIC connection.",
    "no-evidence": "The record of the job is missing or broken.",
    "no-key-log": "No endpoint wrote a key log.",
    "offload": "A network card joins packets, so captures show packets that no link carries.",
    "secrets-missing": "Packets on which the verdict depends could not be decrypted.",
    "spins": "A program waits in a loop, so that the guest's clock can't advance.",
}
_FOR_NOW = {
    "archive-broken": "The archive of a container's folder is broken.",
    "captures-died": "A capture ended before its time.",
    "collected-limit": "A job left more bytes on its hosts than bentpipe copies.",
    "captures-not-ended": "A capture did not end when bentpipe stopped it.",
    "disturbed": "This host was too busy, so the numbers would have measured the host.",
    "engine": "The Docker Engine refused a call.",
    "engine-silent": "The Docker Engine did not answer.",
    "guest-died": "A guest's kernel ended before its job did.",
    "guest-hangs": "A guest did nothing and its clock stood still.",
    "guest-late": "A guest ran for too long.",
    "guest-memory": "This host had no memory left for a guest.",
    "guest-not-started": "A guest could not be started.",
    "guest-panic": "A guest's kernel panicked.",
    "holder-died": "A container of the lane ended.",
    "holder-silent": "A container of the lane did not answer.",
    "host-lost": "A remote host did not answer.",
    "judge-failed": "The judge itself failed.",
    "link": "A real link did not carry the job.",
    "link-died": "The simulator ended.",
    "link-failed": "The simulator ended with an error.",
    "link-not-ready": "The simulator was not ready in time.",
    "no-address": "The client's host reaches no address of the server's host.",
    "no-end-capture": "The capture at an endpoint did not begin.",
    "no-disk": "The disk of an image could not be made.",
    "no-lane": "The lane was not prepared.",
    "no-side": "A container of a remote host is missing.",
    "no-truth": "The simulator left no record.",
    "not-recorded": "The job has no recording.",
    "not-an-engine": "The Docker Engine's socket of a host answers, but not as a Docker Engine does.",
    "not-wired": "The lane could not be wired.",
    "origin-not-ready": "The origin server did not listen in time.",
    "beside-missing": "The second flow did not share the link with the job's own flow.",
    "beside-not-ready": "The server of the second flow was not ready in time.",
    "box-not-ready": "A middlebox was not ready in time.",
    "terminal-ended": "The terminal box ended early.",
    "gateway-ended": "The gateway box ended early.",
    "server-ended": "The origin server ended early.",
    "selftest": "The self-test of the link could not run.",
    "side-died": "A container of a remote host ended.",
    "side-failed": "A command on a remote host failed.",
    "stopped": "The run was stopped while the job ran.",
    "worker-failed": "A worker could not run the job.",
    "worker-lost": "Workers were lost while they had the job.",
}
_IMAGE = {
    "ignores-testcase": "The image runs although it does not know the test case.",
    "no-entry-point": "The image has no entry point.",
    "no-net-admin": "The image needs a capability that it does not get.",
    "no-setup-script": "The image has no /setup.sh.",
    "not-root": "The image does not start as root.",
    "wrong-platform": "The image is for another platform.",
}

CODES = {
    code.name: code
    for code in (
        *_codes(Matter.ENDPOINT, _ENDPOINT),
        *_codes(Matter.QUESTION, _QUESTION),
        *_codes(Matter.HARNESS, _FOR_GOOD),
        *_codes(Matter.HARNESS, _FOR_NOW, again=True),
        *_codes(Matter.IMAGE, _IMAGE),
    )
}
"""Code by name."""

LINK_BROKEN = ("link-died", "link-failed", "captures-died", "captures-not-ended", "no-truth")
"""Codes of the harness that an endpoint can cause: the interface of the simulator ends together with the endpoint's."""


def another_attempt_helps(name: str) -> bool:
    """True when a job that ended as an error with this code may succeed in another attempt. `Code.again` decides this
    for codes of the harness. For all other codes and for unknown codes it is True."""
    code = CODES.get(name)
    return code is None or code.matter is not Matter.HARNESS or code.again
