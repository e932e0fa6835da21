"""CPU seconds and memory of our decoder and of pyshark: `.venv/bin/python -m runner.benchmarks.decoder [CAPTURE_DIR]`.

Both read the same captures, one after the other, each in its own process. Our decoder makes tables and facts; pyshark
is used packet by packet, as in the public QUIC Interop Runner. CAPTURE_DIR has, at any depth, one or two `*.pcap` files
of a job and its key logs (`*key*.log`). Without CAPTURE_DIR a transfer of 10 MiB over the loopback interface is
captured first, which needs tcpdump and root. The ratios compare CPU times, so other load on the machine has little
effect.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from runner.units import MIB

TARGET_RATIO = 150
TARGET_PAIR_CPU_S = 0.5
TARGET_RSS_MIB = 300
REPETITIONS = 5
PORT = 4433

out = Console(highlight=False)


@click.command()
@click.argument("capture_dir", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--measure", type=click.Choice(["ours", "pyshark"]), hidden=True)
def main(capture_dir: Path | None, measure: str | None) -> None:
    """Measure both readers on the captures of one job."""
    if capture_dir is None:
        with tempfile.TemporaryDirectory() as scratch:
            asyncio.run(_record(Path(scratch)))
            _compare(Path(scratch))
    elif measure is None:
        _compare(capture_dir)
    else:
        captures, key_logs = _files(capture_dir)
        measured = _ours(captures, key_logs) if measure == "ours" else _pyshark(captures, key_logs)
        click.echo(json.dumps(measured))


def _files(folder: Path) -> tuple[list[Path], list[Path]]:
    captures = sorted(folder.rglob("*.pcap"))
    # Some folders keep a merged key log beside those of the endpoints.
    key_logs = sorted(folder.rglob("*key*.log"))
    if not captures or len(captures) > 2:
        raise click.UsageError(f"{folder} has {len(captures)} captures: give the folder of one job, with one or two.")
    return captures, key_logs


def _ours(captures: list[Path], key_logs: list[Path]) -> dict[str, Any]:
    """CPU seconds within this process: for each capture, and for all captures with the facts of the job."""
    from runner.decode import decode_capture  # noqa: PLC0415 - measured in a process of its own
    from runner.trace import facts  # noqa: PLC0415

    single, job = [], []
    for _ in range(REPETITIONS):
        began = time.process_time()
        traces = []
        for capture in captures:
            before = time.process_time()
            traces.append(decode_capture(capture, key_logs))
            single.append(time.process_time() - before)
        facts(traces[0], traces[-1])
        job.append(time.process_time() - began)
    undecrypted = sum(each.actual or 0 for trace in traces for each in trace.checks[:1])
    return {
        "first_cpu_s": job[0],
        "capture_cpu_s": median(single),
        "job_cpu_s": median(job),
        "stream_frames": sum(trace.stream_frames.num_rows for trace in traces),
        "undecrypted": undecrypted,
    }


def _pyshark(captures: list[Path], key_logs: list[Path]) -> dict[str, Any]:
    """The numbers that common scripts of the field take from pyshark: the stream frames of every QUIC packet, one at a
    time."""
    import pyshark  # noqa: PLC0415 - the reference only

    stream_frames = 0
    with tempfile.NamedTemporaryFile(suffix=".log") as merged:
        merged.write(b"".join(path.read_bytes() for path in key_logs))
        merged.flush()
        for capture in captures:
            reader = pyshark.FileCapture(
                str(capture),
                display_filter="quic",
                override_prefs={"tls.keylog_file": merged.name},
                disable_protocol="http3",
                decode_as={"udp.port==443": "quic", f"udp.port=={PORT}": "quic"},
            )
            for packet in reader:
                stream_frames += sum(hasattr(layer, "stream_stream_id") for layer in packet.get_multiple_layers("quic"))
            reader.close()
    return {"stream_frames": stream_frames}


def _compare(folder: Path) -> None:
    captures, _ = _files(folder)
    ours, ours_cpu_s, ours_rss = _in_a_process(folder, "ours")
    theirs, theirs_cpu_s, theirs_rss = _in_a_process(folder, "pyshark")
    count = len(captures)
    table = Table("", "CPU s per capture", "peak RSS MiB", "STREAM frames", box=None)
    table.add_row(
        "pyshark with its tshark", f"{theirs_cpu_s / count:.2f}", f"{theirs_rss:.0f}", str(theirs["stream_frames"])
    )
    table.add_row("ours, decoding", f"{ours['capture_cpu_s']:.3f}", "", str(ours["stream_frames"]))
    table.add_row("ours, decoding and facts", f"{ours['job_cpu_s'] / count:.3f}", f"{ours_rss:.0f}", "")
    table.add_row("ours, the first in a new process", f"{ours['first_cpu_s'] / count:.3f}", "", "")
    out.print(table)
    out.print(
        f"{sum(path.stat().st_size for path in captures) / count / MIB:.1f} MiB per capture, {count} of them, "
        f"{ours['undecrypted']} packets undecrypted; our process, {REPETITIONS} times all, took {ours_cpu_s:.1f} s"
    )
    ratio = theirs_cpu_s / ours["job_cpu_s"]
    pair = ours["job_cpu_s"] * 2 / count
    _judge(f"pyshark / ours, decoding and facts: {ratio:.0f}× (target ≥ {TARGET_RATIO}×)", ratio >= TARGET_RATIO)
    _judge(f"a pair of captures: {pair:.2f} s (target ≤ {TARGET_PAIR_CPU_S} s)", pair <= TARGET_PAIR_CPU_S)
    _judge(f"peak memory: {ours_rss:.0f} MiB (target ≤ {TARGET_RSS_MIB} MiB)", ours_rss <= TARGET_RSS_MIB)


def _judge(sentence: str, met: bool) -> None:
    out.print(f"{'met   ' if met else 'MISSED'}  {sentence}")


def _in_a_process(folder: Path, reader: str) -> tuple[dict[str, Any], float, float]:
    """The output of a reader, the CPU seconds of its process and its children, and its largest resident set in MiB."""
    command = [sys.executable, "-m", "runner.benchmarks.decoder", str(folder), "--measure", reader]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    printed = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise click.ClickException(f"{reader} ended with status {os.waitstatus_to_exitcode(status)}")
    # Linux gives ru_maxrss in kilobytes, and includes children that were waited for, such as pyshark's tshark.
    return json.loads(printed), usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


async def _record(folder: Path) -> None:
    """Capture one transfer of aioquic with itself on the loopback interface."""
    from aioquic.asyncio.client import connect  # noqa: PLC0415 - only without captures of one's own
    from aioquic.asyncio.server import serve  # noqa: PLC0415
    from aioquic.quic.configuration import QuicConfiguration  # noqa: PLC0415

    key, certificate = folder / "key.pem", folder / "cert.pem"
    openssl = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout {key} -out {certificate}"
    subprocess.run([*openssl.split(), "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True)
    tcpdump = f"tcpdump -i lo --immediate-mode -B 65536 -U -Z root -w {folder / 'loopback.pcap'} udp port {PORT}"
    capturing = subprocess.Popen(tcpdump.split(), stderr=subprocess.PIPE)
    try:
        assert capturing.stderr is not None
        capturing.stderr.readline()  # printed when it is listening
        with (folder / "keys.log").open("w") as secrets:
            server = QuicConfiguration(is_client=False, alpn_protocols=["hq-interop"], secrets_log_file=secrets)
            server.load_cert_chain(certificate, key)
            client = QuicConfiguration(alpn_protocols=["hq-interop"], cafile=str(certificate), server_name="localhost")
            listening = await serve("127.0.0.1", PORT, configuration=server, stream_handler=_answer)
            async with connect("127.0.0.1", PORT, configuration=client) as connection:
                reader, writer = await connection.create_stream()
                writer.write(b"GET /file\r\n")
                writer.write_eof()
                received = len(await reader.read())
            listening.close()
            await asyncio.sleep(0.5)
    finally:
        capturing.terminate()
        capturing.wait()
    out.print(f"captured a transfer of {received / MIB:.0f} MiB over the loopback interface")


def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    del reader
    writer.write(bytes(10 * MIB))
    writer.write_eof()


if __name__ == "__main__":
    main()
