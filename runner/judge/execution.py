"""Judges the engine's records of the endpoints: start, readiness, exit codes, time-outs, full volumes."""

from collections.abc import Iterator

from runner.judge.harness import NOT_STARTED
from runner.model.artifacts import Artifacts, EndpointRecord, Evidence
from runner.model.protocol import OVER_TCP, protocol_of
from runner.model.result import Finding
from runner.model.run import CaseRecord

UNSUPPORTED_EXIT = 127
_LOG_LINES = 12


def job_protocol(evidence: Evidence, record: CaseRecord) -> str:
    """The protocol (ALPN) that was requested from the endpoints."""
    wire_name = evidence.client.environment.get("TESTCASE")
    return protocol_of(wire_name) if wire_name else record.protocol


def unsupported(evidence: Evidence, record: CaseRecord) -> Finding | None:
    """The finding when an endpoint exited with the exit code for an unknown case; None when no endpoint did."""
    for role, endpoint in (("server", evidence.server), ("client", evidence.client)):
        if endpoint.exit_code == UNSUPPORTED_EXIT and not endpoint.stopped_by_us:
            return Finding(
                code="unsupported",
                requirement="An image exits with 127 when it doesn't support the case.",
                expected=f"support of '{endpoint.environment.get('TESTCASE', record.wire_names[role])}'",
                actual=f"the {role} exited with 127",
                role=role,
            )
    return None


def execution_findings(evidence: Evidence, record: CaseRecord, artifacts: Artifacts) -> Iterator[Finding]:
    """Findings about the execution of the endpoints. Causes come before their consequences."""
    if evidence.error:
        yield Finding(
            code=evidence.error["code"],
            requirement="The image has an entry point that this host can run.",
            expected="a process",
            actual=evidence.error["message"],
            role=NOT_STARTED[evidence.error["code"]].value,
        )
        return
    yield from limit_findings(evidence, artifacts)
    server = evidence.server
    if server.exit_code is not None and not server.stopped_by_us:
        yield _exit_finding("server", server, "The server runs until it gets SIGTERM.", artifacts)
    elif evidence.server_ready is False:
        yield _not_ready(evidence, record, artifacts)
    yield from client_end(evidence, record, artifacts)


def limit_findings(evidence: Evidence, artifacts: Artifacts) -> Iterator[Finding]:
    """Findings about limits of bentpipe that an endpoint reached. They come first, because other failures may follow
    from them."""
    for role, endpoint in (("client", evidence.client), ("server", evidence.server)):
        if endpoint.output_flooded:
            yield Finding(
                code="output-flood",
                requirement="An endpoint does not print more than the limit.",
                expected="at most 16 MiB of output",
                actual="more; the endpoint was killed",
                role=role,
                log_tail=log_tail(artifacts, role),
            )
        if endpoint.volumes_full:
            yield Finding(
                code="volume-full",
                requirement="An endpoint keeps its files within the quota of its folders.",
                expected="less than the quota",
                actual=f"{', '.join(endpoint.volumes_full)} is full",
                role=role,
            )


def client_end(evidence: Evidence, record: CaseRecord, artifacts: Artifacts) -> Iterator[Finding]:
    """The finding when the client did not end by itself, in time, and with success."""
    client = evidence.client
    if client.timed_out:
        yield Finding(
            code="timeout",
            requirement="The client ends within the time-out of the case.",
            expected=f"the client ends by itself within {record.timeout:g} s",
            actual=f"still running after {record.timeout:g} s; {_progress(evidence)}",
            role="client",
            log_tail=log_tail(artifacts, "client"),
        )
    elif client.exit_code not in (0, None) and not client.stopped_by_us:
        yield _exit_finding("client", client, "The client exits with 0 when all files have arrived.", artifacts)


def silent_client(evidence: Evidence, artifacts: Artifacts) -> Iterator[Finding]:
    """The finding when a client reported success although the captures contain no connection. With a middlebox, the
    middlebox may be the reason."""
    client = evidence.client
    lacking = [file for file in evidence.files if file.received is None]
    if client.exit_code == 0 and not client.stopped_by_us and lacking and evidence.via is None:
        yield Finding(
            code="client-silent",
            requirement="The client exits with 0 when all files have arrived.",
            expected=f"a connection, and {len(evidence.files)} files",
            actual=f"exit code 0, no connection, and {len(lacking)} files are missing",
            role="client",
            log_tail=log_tail(artifacts, "client"),
        )


def log_tail(artifacts: Artifacts, role: str) -> str:
    """The last lines that a container printed; empty when there is no log."""
    log = artifacts.folder / role / "output.log"
    if not log.is_file():
        return ""
    return "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])


def _not_ready(evidence: Evidence, record: CaseRecord, artifacts: Artifacts) -> Finding:
    if job_protocol(evidence, record) in OVER_TCP:
        requirement, expected = "The server listens on TCP port 443.", "a listening socket within 10 s"
        actual, section = "no listening socket", "endpoint contract, What an image must do"
    else:
        requirement = "The server listens on UDP port 443 and answers unknown versions (RFC 9000 §6.1)."
        expected, section = "Version Negotiation within 10 s", "RFC 9000 §6.1"
        actual = _instead_of_ready(evidence.server_udp_ports)
    return Finding(
        code="server-not-ready",
        requirement=requirement,
        expected=expected,
        actual=actual,
        role="server",
        section=section,
        log_tail=log_tail(artifacts, "server"),
    )


def _instead_of_ready(ports: tuple[int, ...]) -> str:
    if not ports:
        return "no answer; the server has no UDP socket"
    if 443 in ports:
        return "no answer from the server's socket on UDP port 443"
    return f"no answer; the server has UDP port {', '.join(str(port) for port in ports)} open instead"


def _progress(evidence: Evidence) -> str:
    received, total = sum(file.received or 0 for file in evidence.files), sum(file.size for file in evidence.files)
    return f"{received} of {total} B had been saved"


def _exit_finding(role: str, endpoint: EndpointRecord, requirement: str, artifacts: Artifacts) -> Finding:
    killed = " (killed: out of memory)" if endpoint.oom_killed and endpoint.exit_code == 137 else ""
    return Finding(
        code=f"{role}-exit",
        requirement=requirement,
        expected="exit code 0" if role == "client" else "no exit before the client's",
        actual=f"exit code {endpoint.exit_code}{killed}",
        role=role,
        log_tail=log_tail(artifacts, role),
    )
