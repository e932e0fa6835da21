"""A job's decrypted packets as tshark reads them: lines for a terminal, and pyshark's objects for notebooks.

from runner.notebook import packets
for packet in packets("demo/quinn_aioquic/sat/1", filter="quic.frame_type == 6"):
    print(packet.number, packet.quic.packet_number)
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from runner.errors import SetupError, UsageError
from runner.files import read_regular
from runner.model.result import Artifacts
from runner.store.runs import stored_result

if TYPE_CHECKING:
    from pyshark.packet.packet import Packet

CLIENT, SERVER = "client", "server"
_ENV = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", "HOME": "/nonexistent"}
_NOBODY = 65534
_PACKET, _END = b"<packet>", b"</packet>"


def packets(job: str | Path, *, filter: str = "", vantage: str = CLIENT) -> "Iterator[Packet]":
    """The packets of a stored job, decrypted, as pyshark's objects.

    `job`: `RUN/SERVER_CLIENT/CASE/ITERATION` of a run in logs/, or the job's folder. `filter`: a display filter of
    Wireshark. `vantage`: the capture at the `client` or at the `server`. Raises UsageError for an unknown job, for a
    job without a capture, and for a wrong filter; SetupError without tshark.

    The packets don't come from pyshark's own `FileCapture`, because it needs an event loop that does not run: it
    fails in notebooks. Only its parser is used.
    """
    folder, result = stored_result(job)
    return _parsed(folder.own(result.job), filter, vantage)


def _parsed(artifacts: Artifacts, display_filter: str, vantage: str) -> "Iterator[Packet]":
    from pyshark.tshark.output_parser.tshark_xml import packet_from_xml_packet  # noqa: PLC0415 - slow to import

    part: list[bytes] = []
    with closing(tshark(artifacts, "-T", "pdml", display_filter=display_filter, vantage=vantage)) as lines:
        for line in lines:
            if part or line.startswith(_PACKET):
                part.append(line)
                if line.startswith(_END):
                    yield packet_from_xml_packet(b"".join(part))
                    part = []


def tshark(
    artifacts: Artifacts, *options: str, display_filter: str = "", vantage: str = CLIENT
) -> Generator[bytes, None, None]:
    """The lines that tshark prints with `options` about a job's capture. Raises errors as `packets` does."""
    if vantage not in (CLIENT, SERVER):
        raise UsageError(f"There is no vantage point '{vantage}'. Choices: {CLIENT}, {SERVER}.")
    program = shutil.which("tshark")
    if program is None:
        raise SetupError("tshark is not installed: run `sudo apt-get install tshark`, or ./bentpipe packets, as root.")
    capture = artifacts.client_capture if vantage == CLIENT else artifacts.server_capture
    if not capture.is_file():
        reason = "run the job again with --keep-captures all"
        if not artifacts.evidence.is_file():
            reason = "its results were imported, and its packets are on the host that ran it"
        raise UsageError(f"{artifacts.folder} has no capture of the {vantage}: {reason}.")
    command = [program, "-r", "-", "-d", "udp.port==443,quic", *options]
    command += ["-Y", display_filter] if display_filter else []
    with tempfile.NamedTemporaryFile(prefix="bentpipe-", suffix=".keys.log") as keys, tempfile.TemporaryFile() as log:
        if capture.suffix == ".pcap":  # a pcapng file has the secrets inside
            keys.write(b"\n".join(read_regular(path) for path in artifacts.key_logs))
            keys.flush()
            command += ["-o", f"tls.keylog_file:{keys.name}"]
        nobody = None
        if os.geteuid() == 0:  # images can write what they like into a capture, and tshark's dissectors are large
            nobody = _NOBODY
            os.fchown(keys.fileno(), nobody, nobody)
        with (
            capture.open("rb") as file,
            subprocess.Popen(
                command,
                stdin=file,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_ENV,
                user=nobody,
                group=nobody,
                extra_groups=None if nobody is None else (),
            ) as process,
        ):
            assert process.stdout is not None
            try:
                yield from process.stdout
            except GeneratorExit:
                process.kill()
                raise
        log.seek(0)
        if process.returncode:
            errors = log.read().decode(errors="replace").splitlines()
            # tshark prints other lines, too, such as a warning to root.
            reasons = [line.removeprefix("tshark: ") for line in errors if line.startswith("tshark: ")]
            reason = (reasons or errors[-1:] or [f"tshark ended with exit code {process.returncode}"])[0].rstrip(".")
            where, _, rest = reason.partition("The standard input")
            raise UsageError(f"{capture}{rest}." if rest and not where else f"filter '{display_filter}': {reason}.")
