"""Problems of an image and their fixes: in the image itself, in the compliance probe, and in its jobs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from runner.images.image_facts import ImageFacts
from runner.model.implementation import Role
from runner.model.result import Finding
from testcases.hits import MISSED

_BASE_IMAGE = (
    "start from the public runner's endpoint image (or implementations/_endpoint of this project), "
    "which sets the routes through the simulator"
)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A breach of the contract. `fatal`: the image can't be run."""

    code: str
    what: str
    fix: str
    fatal: bool = False


def of_image(facts: ImageFacts) -> Iterator[Problem]:
    """Problems that are visible without running the image (docs/contract.md)."""
    if facts.platform != facts.host_platform:
        yield Problem(
            code="wrong-platform",
            what=f"The image is built for {facts.platform}, this host runs {facts.host_platform}.",
            fix=f"Build it with `docker build --platform {facts.host_platform}`.",
            fatal=True,
        )
    if not facts.starts:
        yield Problem(
            code="no-entry-point",
            what="The image has neither ENTRYPOINT nor CMD: the runner starts it without a command.",
            fix='End the Dockerfile with `ENTRYPOINT ["/run_endpoint.sh"]`, or with the command of your endpoint.',
            fatal=True,
        )
    if "/setup.sh" not in facts.files:
        yield Problem(
            code="no-setup-script",
            what="The image has no /setup.sh: in the public runner its packets would never reach the simulator.",
            fix=f"Let the Dockerfile {_BASE_IMAGE}.",
        )
    if facts.user not in ("", "0", "root", "0:0", "root:root"):
        yield Problem(
            code="not-root",
            what=f"The image runs as '{facts.user}', which can't set routes: /setup.sh needs root with NET_ADMIN.",
            fix="Remove USER from the Dockerfile. If you need fewer rights, drop them after /setup.sh.",
        )


def of_probe(answers: Mapping[Role, str]) -> Iterator[Problem]:
    """Problems that the compliance probe shows. `answers`: the reasons why the image is not compliant, by role."""
    for role, reason in answers.items():
        yield Problem(
            code="ignores-testcase",
            what=f"As {role.value}, with a TESTCASE that does not exist, {reason}.",
            fix="Compare TESTCASE with the list of supported cases first, and exit with 127 for any other case.",
        )


def of_output(role: Role, output: str) -> Iterator[Problem]:
    """Problems in the output of /setup.sh."""
    refused = [line for line in output.splitlines() if "Operation not permitted" in line]
    if refused:
        yield Problem(
            code="no-net-admin",
            what=f"As {role.value}, /setup.sh lacks a permission: `{refused[0].strip()[:160]}`.",
            fix="Run /setup.sh as root before anything else: only root has NET_ADMIN in the container.",
        )


# Fixes by the code of a finding. For other codes, the finding's requirement already says what to do.
FIXES = {
    "server-not-ready": "Listen on UDP port 443 of all addresses, IPv4 and IPv6, within 10 s of the start, and answer "
    "unknown versions with Version Negotiation.",
    "server-exit": "Keep serving until SIGTERM. The last lines of the log say why the server ended.",
    "client-exit": "Exit with 0 when every file is saved. The last lines of the log say why the client didn't.",
    "client-not-started": "The first process must exist in the image and be executable.",
    "server-not-started": "The first process must exist in the image and be executable.",
    "timeout": "Let the client end by itself as soon as the last file is saved.",
    "files-differ": "A client saves each URL's body to /downloads/<last part of the path>, completely, before it "
    "exits; a server answers each request with the whole file of /www and ends the stream.",
    "files-extra": "Write nothing but the requested files to /downloads; logs belong to /logs.",
    "no-key-log": "Append secrets in the NSS key log format to the file that SSLKEYLOGFILE names.",
    "wrong-alpn": "Offer hq-interop in every case except http3, which needs h3.",
    "handshake-count": "Use one connection for all requests, except in multiconnect, resumption and zerortt.",
    "output-flood": "Print less, and write traces into files below /logs.",
    "volume-full": "Write less below /logs: qlog and key log are enough.",
}


_A_CONNECTION_EACH = "Open a new connection for each of the 50 requests, one after the other."
# Fixes for single cases in which the general advice would be wrong.
_FIXES_OF_CASES = {
    ("handshake-count", "handshakeloss"): _A_CONNECTION_EACH,
    ("handshake-count", "handshakecorruption"): _A_CONNECTION_EACH,
    ("handshake-count", "resumption"): "Open two connections. The second resumes the session of the first.",
    ("handshake-count", "zerortt"): "Open two connections. The second sends its requests in 0-RTT.",
    ("timeout", "handshakeloss"): "Repeat lost handshake packets after the probe time-out (RFC 9002 §6.2). Don't close "
    "a connection before the idle time-out.",
    ("timeout", "handshakecorruption"): "Discard packets that can't be authenticated. Repeat lost packets after the "
    "probe time-out (RFC 9002 §6.2).",
    (
        "black-hole-not-noticed",
        "mtublackhole",
    ): "Fall back to 1200-byte datagrams when only large ones are lost (RFC 8899 §4.3).",
    ("timeout", "blackhole"): "Continue after a silence of two seconds. Probe time-outs must not grow far beyond two "
    "seconds.",
    ("wrong-alpn", "http3"): "Offer h3 in this case.",
}


_FOR_CLIENTS = frozenset({"client-exit", "files-extra", "timeout"})
"""Codes whose fix is for the client."""


def fix(finding: Finding, case: str, role: Role) -> str:
    """The fix for the image in `role`. Empty when the finding's requirement already says it, or when the finding is
    about the peer."""
    if finding.role not in ("", role.value) or (finding.code in _FOR_CLIENTS and role is Role.SERVER):
        return ""
    return _FIXES_OF_CASES.get((finding.code, case)) or FIXES.get(finding.code, "")


_HOST_FAILED = "Repair what `./bentpipe doctor` reports about this host. Then check the image again."


def open_fix(code: str) -> str:
    """The fix for a cell that could not be decided for this reason."""
    known = {
        MISSED: "The image has no problem: the impairment of the link did not affect any of its packets. Run this case "
        "again with `--case`; another seed may affect some.",
        "disturbed": "Check the image again while this host is idle, or with `--lanes 1`.",
    }
    return known.get(code) or FIXES.get(code, _HOST_FAILED)
