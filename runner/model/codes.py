"""Every code of a finding, an error or a diagnosis: what it means, whose matter it is, and what follows from it.

Declared here once. `result.json` and `evidence.json` carry codes; sentences beside them may change, codes are stable.
Rules of the RFCs have ids of their own (`runner/judge/rules`).
"""

from dataclasses import dataclass
from enum import StrEnum


class Matter(StrEnum):
    """Whose matter a code is."""

    ENDPOINT = "endpoint"  # an implementation broke a MUST or the contract
    QUESTION = "question"  # the question did not arise: unsupported, or skipped
    HARNESS = "harness"  # bentpipe, its host, a link or a remote host
    IMAGE = "image"  # found by `check` before any job
    DIAGNOSIS = "diagnosis"  # why a transfer was slow; never a verdict


@dataclass(frozen=True, kw_only=True)
class Code:
    """One code. `meaning` is a sentence without numbers."""

    name: str
    matter: Matter
    meaning: str
    again: bool = False  # of the harness: another attempt may succeed
    silences: bool = False  # in `handshake`: the pair got no file through, so that every other case would fail likewise


def _codes(matter: Matter, meanings: dict[str, str], *, again: bool = False, silences: bool = False) -> list[Code]:
    return [
        Code(name=name, matter=matter, meaning=meaning, again=again, silences=silences)
        for name, meaning in meanings.items()
    ]


_NO_FILE = {
    "client-exit": "The client ended with an exit code other than 0.",
    "client-hello-unanswered": "The server did not answer the ClientHello.",
    "client-not-started": "The engine could not start the client's first process.",
    "files-differ": "A requested file is missing, or differs from the server's.",
    "output-flood": "An endpoint printed more than the limit.",
    "packet-flood": "An endpoint sent many times more than the files need.",
    "server-exit": "The server ended before the client.",
    "server-not-ready": "The server did not answer an unknown version in time.",
    "server-not-started": "The engine could not start the server's first process.",
    "timeout": "The client was still running at the end of the case's time.",
    "volume-full": "An endpoint filled one of its folders.",
    "wrong-alpn": "The endpoints negotiated another application protocol than the case asks for.",
}
_ENDPOINT = {
    "address-not-validated": "The server sent too much to an address that it had not validated.",
    "amplification-limit-exceeded": "The server sent more than three times what it had received.",
    "black-hole-not-noticed": "The server kept sending packets that the path no longer carried.",
    "ce-not-reported": "Congestion marks arrived, and the ACKs did not count them.",
    "close-code-undefined": "A connection was closed with a code that the application protocol does not define.",
    "closed-with-error": "A connection was closed with an error.",
    "connection-id-reused": "A connection ID was used on two paths.",
    "connection-ids-not-echoed": "Version Negotiation did not echo the client's connection IDs.",
    "ecn-counts-wrong": "ECN counts do not match the packets that arrived.",
    "file-differs": "A downloaded file differs from the server's.",
    "files-extra": "The client saved files that nobody requested.",
    "first-without-certificate": "The first connection had no Certificate.",
    "flow-control-violated": "The server sent more than the client's limit allowed.",
    "handshake-count": "The number of handshakes is not the one that the case asks for.",
    "leak": "An eavesdropper on the satellite segment saw what the middlebox claims to hide.",
    "no-control-stream": "An endpoint opened no HTTP/3 control stream.",
    "no-ecn-counts": "ACKs carry no ECN counts.",
    "no-ect": "Packets carry no ECN codepoint.",
    "no-headers": "A request or a response has no HEADERS frame.",
    "no-key-update": "An endpoint did not update its keys.",
    "no-retry": "The server sent no Retry.",
    "no-settings": "A control stream does not begin with SETTINGS.",
    "no-version-negotiation": "The server did not answer an unknown version with Version Negotiation.",
    "not-concurrent": "Requests were not open at the same time.",
    "not-early": "The client sent its requests after the handshake instead of in 0-RTT.",
    "early-data-refused": "The server refused 0-RTT.",
    "not-ipv6": "Packets did not use IPv6.",
    "not-resumed": "The second connection was not resumed.",
    "not-upgraded": "The connection did not change to QUIC version 2.",
    "offered-version-listed": "Version Negotiation lists the version that the client offered.",
    "old-path-kept": "The server kept sending to the old path.",
    "other-suite-chosen": "The server chose another cipher suite.",
    "other-suites-offered": "The client offered other cipher suites.",
    "packet-number-reused": "A packet number was used twice.",
    "packet-without-frames": "A packet has no frame.",
    "page-incomplete": "The browser did not load every object of the page.",
    "path-challenge-unanswered": "A PATH_CHALLENGE was not answered.",
    "path-not-challenged": "A new path was used without a PATH_CHALLENGE.",
    "path-not-validated": "A new path was not validated.",
    "stream-limit-high": "The server allowed more streams at once than the case provides for.",
    "streams-not-refilled": "The server never raised the limit of streams.",
    "unexpected-retry": "The server sent Retry where the case forbids it.",
    "version-1-not-listed": "Version Negotiation does not list version 1.",
    "version-not-listed": "The client went on with a version that was not listed.",
    "wrong-version": "The connection used another QUIC version than the case asks for.",
}
_QUESTION = {
    "chain-not-sent": "The server sent less of its certificates than the question needs.",
    "client-hello-small": "The client's first flight fits into one datagram.",
    "declared-unsupported": "The pair can't run the case by its own declaration.",
    "handshake-failed": "The pair got no file through in `handshake`.",
    "limit-not-reached": "The server never came near the limit.",
    "limits-never-raised": "The client never raised its limits.",
    "no-migration": "The client stayed on its path.",
    "no-probe": "The client sent no probe.",
    "no-unknown-version": "The client did not offer an unknown version.",
    "not-compliant": "The image does not answer unknown test cases with exit code 127.",
    "packets-small": "The server never sent packets that are too long for the path.",
    "stream-limit-not-met": "The first limit of streams covered all files.",
    "unsupported": "An endpoint answered the test case with exit code 127.",
}
_FOR_GOOD = {
    "analysis-limit": "Judging took too much time or memory.",
    "bypassed": "Traffic crossed the satellite segment in another way than the middlebox provides for.",
    "early-data-unread": "0-RTT packets could not be decrypted, and nothing else decides the case.",
    "impairment-missed": "The link's impairment hit no packet of this connection.",
    "no-capture": "A capture is missing or broken.",
    "no-connection": "The captures hold no QUIC connection.",
    "no-evidence": "The record of the job is missing or broken.",
    "no-key-log": "No endpoint wrote a key log.",
    "offload": "A network card joins packets, so captures show packets that no link carries.",
    "secrets-missing": "Packets that the case asks about could not be decrypted.",
    "spins": "A program waits in a loop, so that the guest's clock can't advance.",
}
_FOR_NOW = {
    "archive-broken": "The archive of a container's folder is broken.",
    "captures-died": "A capture ended before its time.",
    "captures-not-ended": "A capture did not end when it was told to.",
    "disturbed": "This host was too busy, so the numbers would have measured the host.",
    "engine": "The Docker Engine refused a call.",
    "engine-silent": "The Docker Engine did not answer.",
    "guest-died": "A guest's kernel ended before its job did.",
    "guest-hangs": "A guest did nothing and its clock stood still.",
    "guest-late": "A guest ran for too long.",
    "guest-not-started": "A guest could not be started.",
    "guest-panic": "A guest's kernel panicked.",
    "holder-died": "A container of the lane ended.",
    "holder-silent": "A container of the lane did not answer.",
    "host-lost": "A remote host did not answer.",
    "judge-failed": "The judge itself failed.",
    "link": "A real link did not carry the job.",
    "link-died": "The simulator ended.",
    "link-failed": "The simulator ended with an error.",
    "link-not-ready": "The simulator did not open the path in time.",
    "no-address": "The client's host reaches no address of the server's host.",
    "no-end-capture": "The capture at an endpoint did not begin.",
    "no-disk": "The disk of an image could not be made.",
    "no-lane": "The lane was not prepared.",
    "no-side": "A container of a remote host is missing.",
    "no-truth": "The simulator left no record.",
    "not-recorded": "The job has no recording.",
    "not-wired": "The lane could not be wired.",
    "origin-not-ready": "The origin server did not listen in time.",
    "path-not-ready": "A middlebox was not ready in time.",
    "terminal-ended": "The terminal box ended early.",
    "gateway-ended": "The gateway box ended early.",
    "selftest": "The self-test of the link could not run.",
    "side-died": "A container of a remote host ended.",
    "side-failed": "A command on a remote host failed.",
    "stopped": "The run was stopped while the job ran.",
}
_IMAGE = {
    "ignores-testcase": "The image runs although it does not know the test case.",
    "no-entry-point": "The image has no entry point.",
    "no-net-admin": "The image needs a capability that it does not get.",
    "no-setup-script": "The image has no /setup.sh.",
    "not-root": "The image does not start as root.",
    "wrong-platform": "The image is for another platform.",
}
_DIAGNOSIS = {
    "application-idle": "The server had nothing to send.",
    "bursts": "The server sent in bursts and rested between them.",
    "dense-acks": "The client acknowledged more often than the return link bears.",
    "ecn-ignored": "The server did not react to congestion marks.",
    "ecn-not-reported": "The client did not report congestion marks.",
    "mtu-black-hole": "Long packets vanished.",
    "mtu-not-raised": "The server never used the path's full packet size.",
    "out-of-order": "Packets arrived out of order.",
    "outage": "The path carried nothing for a while.",
    "packet-numbers": "Packet numbers grew in an unusual way.",
    "queue-overflow": "The queue of the link overflowed.",
    "rate-collapse": "The sending rate collapsed.",
    "receive-window": "The client's flow control held the server back.",
    "retransmitted-tail": "The end of the transfer was spent on retransmissions.",
    "return-link-full": "The return link was full.",
    "sent-twice": "Data was sent twice without need.",
    "slow-start-left-early": "Slow start ended long before the link was full.",
    "small-datagrams": "Datagrams were small.",
    "spurious-retransmissions": "Data was retransmitted although it had arrived.",
    "standing-queue": "A queue stood for most of the transfer.",
    "window-after-loss": "The congestion window stayed small after losses.",
    "window-never-grew": "The congestion window never grew.",
}

CODES = {
    code.name: code
    for code in (
        *_codes(Matter.ENDPOINT, _NO_FILE, silences=True),
        *_codes(Matter.ENDPOINT, _ENDPOINT),
        *_codes(Matter.QUESTION, _QUESTION),
        *_codes(Matter.HARNESS, _FOR_GOOD),
        *_codes(Matter.HARNESS, _FOR_NOW, again=True),
        *_codes(Matter.IMAGE, _IMAGE),
        *_codes(Matter.DIAGNOSIS, _DIAGNOSIS),
    )
}
"""Code by name."""


def another_attempt_helps(name: str) -> bool:
    """Whether a job that ended as an error with this code is worth another attempt. Unknown codes are."""
    code = CODES.get(name)
    return code is None or code.matter is not Matter.HARNESS or code.again
