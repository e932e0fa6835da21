"""Problems of an image and their mends: before it runs, in the compliance probe, and in its jobs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from runner.images.image_facts import ImageFacts
from runner.model.implementation import Role
from testcases.hits import MISSED

_BASE_IMAGE = (
    "start from the public runner's endpoint image (or implementations/_endpoint of this project), "
    "which sets the routes through the simulator"
)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A breach of the contract. `fatal`: nothing can be run."""

    code: str
    what: str
    mend: str
    fatal: bool = False


def of_image(facts: ImageFacts) -> Iterator[Problem]:
    """Problems that are visible without running the image (docs/contract.md)."""
    if facts.platform != facts.host_platform:
        yield Problem(
            code="wrong-platform",
            what=f"The image is built for {facts.platform}, this host runs {facts.host_platform}.",
            mend=f"Build it with `docker build --platform {facts.host_platform}`.",
            fatal=True,
        )
    if not facts.starts:
        yield Problem(
            code="no-entry-point",
            what="The image has neither ENTRYPOINT nor CMD: the runner starts it without a command.",
            mend='End the Dockerfile with `ENTRYPOINT ["/run_endpoint.sh"]`, or what starts your endpoint.',
            fatal=True,
        )
    if "/setup.sh" not in facts.files:
        yield Problem(
            code="no-setup-script",
            what="The image has no /setup.sh: in the public runner its packets would never reach the simulator.",
            mend=f"Let the Dockerfile {_BASE_IMAGE}.",
        )
    if facts.user not in ("", "0", "root", "0:0", "root:root"):
        yield Problem(
            code="not-root",
            what=f"The image runs as '{facts.user}', who may set no routes: /setup.sh needs root with NET_ADMIN.",
            mend="Remove USER from the Dockerfile; drop the rights after /setup.sh when you need to.",
        )


def of_probe(answers: Mapping[Role, str]) -> Iterator[Problem]:
    """`answers`: why a role is not compliant, by role."""
    for role, reason in answers.items():
        yield Problem(
            code="ignores-testcase",
            what=f"As {role.value}, asked for a TESTCASE that nobody knows, {reason}.",
            mend="Compare TESTCASE with the list of what you support, first of all, and exit with 127 for any other.",
        )


def of_output(role: Role, output: str) -> Iterator[Problem]:
    """Problems in the output of /setup.sh."""
    refused = [line for line in output.splitlines() if "Operation not permitted" in line]
    if refused:
        yield Problem(
            code="no-net-admin",
            what=f"As {role.value} it was refused what it tried: `{refused[0].strip()[:160]}`.",
            mend="Run /setup.sh as root before anything else: the container has NET_ADMIN, and other users haven't.",
        )


# What helps, by the code of a finding. A code that isn't here says in its requirement what is to be done.
MENDS = {
    "server-not-ready": "Listen on UDP port 443 of all addresses, IPv4 and IPv6, within 10 s of the start, and answer "
    "unknown versions with Version Negotiation.",
    "server-exit": "Keep serving until SIGTERM; the last lines of the log say why it ended.",
    "client-exit": "Exit with 0 once every file is saved; the last lines of the log say why it didn't.",
    "client-not-started": "The first process must be one that exists in the image and is executable.",
    "server-not-started": "The first process must be one that exists in the image and is executable.",
    "timeout": "The client ends by itself as soon as the last file is saved.",
    "files-differ": "Save each URL's body to /downloads/<last part of the path>, whole, before you exit.",
    "files-extra": "Write nothing but the requested files to /downloads; logs belong to /logs.",
    "no-key-log": "Append secrets in the NSS key log format to the file that SSLKEYLOGFILE names.",
    "wrong-alpn": "Offer hq-interop in every case but http3, which is h3.",
    "handshake-count": "One connection for all requests, but for multiconnect, resumption and zerortt.",
    "output-flood": "Print less; put traces into files below /logs.",
    "volume-full": "Write less below /logs: qlog and key log are enough.",
}


_A_CONNECTION_EACH = "Open a new connection for each of the 50 requests, one after the other."
# What helps in one case, where the general advice would mislead.
_MENDS_OF_CASES = {
    ("handshake-count", "handshakeloss"): _A_CONNECTION_EACH,
    (
        "handshake-count",
        "handshakecorruption",
    ): "Open a new connection for each of the 50 requests, one after the other.",
    ("handshake-count", "resumption"): "Open two connections; the second one resumes the session of the first.",
    ("handshake-count", "zerortt"): "Open two connections; the requests of the second one go in 0-RTT.",
    ("timeout", "handshakeloss"): "Repeat lost handshake packets by the probe time-out (RFC 9002 §6.2), and don't give "
    "a connection up before the idle time-out.",
    ("timeout", "handshakecorruption"): "Discard packets that can't be authenticated and repeat by the probe time-out "
    "(RFC 9002 §6.2).",
    ("timeout", "mtublackhole"): "Fall back to 1200-byte datagrams when only large ones are lost (RFC 8899 §4.3).",
    ("timeout", "blackhole"): "Go on after a silence of two seconds: probe time-outs must not grow beyond it.",
    ("wrong-alpn", "http3"): "Offer h3 in this case.",
}


def mend(code: str, case: str) -> str:
    """The mend for this finding in this case; empty when the finding's requirement already says it."""
    return _MENDS_OF_CASES.get((code, case)) or MENDS.get(code, "")


_HOST_WENT_WRONG = "`./bentpipe doctor` says what this host lacks; then check it again."


def open_mend(code: str) -> str:
    """What to do about a cell that could not be decided for this reason."""
    known = {
        MISSED: "Nothing is wrong with the image: what the link did hit none of its packets. Ask this case alone again "
        "with `--case`; other seeds may hit.",
        "disturbed": "Check it again while this host has nothing else to do, or with `--lanes 1`.",
    }
    return known.get(code) or MENDS.get(code, _HOST_WENT_WRONG)
