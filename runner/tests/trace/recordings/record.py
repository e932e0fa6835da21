"""Record a transfer of aioquic over a link with delay and losses, with a capture at each side. Needs root.

    python -m runner.tests.trace.recordings.record lossy --size 12000 --streams 2 --loss 0.2 --seed 5 --delay 0.05

Veth pairs connect three network namespaces. A process in the middle namespace forwards frames, so the losses happen
between the captures and depend only on the seed. Writes NAME/{client.pcap,server.pcap,keys.log,client.qlog.json.gz,
server.qlog.json.gz}. The qlogs are the oracle of `test_recordings`.
"""

import argparse
import asyncio
import gzip
import heapq
import json
import os
import random
import select
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import serve
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import QuicEvent, StreamDataReceived
from aioquic.quic.logger import QuicLogger
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

PREFIX = f"bptrace{os.getpid()}"
SERVER_ADDRESS, CLIENT_ADDRESS, PORT = "10.99.0.2", "10.99.0.1", 4433
ALPN = "hq-interop"


class _Responder(QuicConnectionProtocol):
    size = 0

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, StreamDataReceived) and event.end_stream:
            self._quic.send_stream_data(event.stream_id, bytes(i * 31 % 251 for i in range(self.size)), end_stream=True)
            self.transmit()


def run_server(folder: Path, size: int) -> None:
    """Answer every request with `size` bytes until killed."""
    _Responder.size = size
    configuration = QuicConfiguration(is_client=False, alpn_protocols=[ALPN], quic_logger=QuicLogger())
    configuration.load_cert_chain(folder / "cert.pem", folder / "key.pem")

    async def main() -> None:
        await serve(SERVER_ADDRESS, PORT, configuration=configuration, create_protocol=_Responder)
        while not (folder / "stop").exists():
            await asyncio.sleep(0.05)

    asyncio.run(main())
    _save_qlog(configuration.quic_logger, folder / "server.qlog.json.gz")


def run_client(folder: Path, streams: int) -> None:
    """Request `streams` files at once, write the key log and close."""
    with (folder / "keys.log").open("w") as keys:
        configuration = QuicConfiguration(
            alpn_protocols=[ALPN], quic_logger=QuicLogger(), secrets_log_file=keys, verify_mode=ssl.CERT_NONE
        )

        async def main() -> None:
            async with connect(SERVER_ADDRESS, PORT, configuration=configuration) as client:
                readers = []
                for _ in range(streams):  # a stream gets its ID at its first write
                    reader, writer = await client.create_stream()
                    writer.write(b"GET /file\r\n")
                    writer.write_eof()
                    readers.append(reader)
                await asyncio.gather(*(reader.read() for reader in readers))

        asyncio.run(main())
    _save_qlog(configuration.quic_logger, folder / "client.qlog.json.gz")


def _save_qlog(logger: QuicLogger | None, path: Path) -> None:
    assert logger is not None
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        file.write(json.dumps(logger.to_dict(), separators=(",", ":")).encode())


def forward(loss: float, delay: float, seed: int) -> None:
    """Bridge the two interfaces of the middle namespace. Each frame is delayed by `delay` seconds; UDP is lost at
    random."""
    rng = random.Random(seed)
    sides = {}
    for here, there in (("c1", "s1"), ("s1", "c1")):
        source = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
        source.bind((here, 0))
        sides[source.fileno()] = (source, there)
    targets = {source.getsockname()[0]: source for source, _ in sides.values()}
    queue: list[tuple[float, int, str, bytes]] = []
    count = 0
    while True:
        timeout = max(0.0, queue[0][0] - time.monotonic()) if queue else None
        for number in select.select(list(sides), [], [], timeout)[0]:
            source, there = sides[number]
            frame, address = source.recvfrom(65536)
            if address[2] == socket.PACKET_OUTGOING:
                continue
            udp = frame[12:14] == b"\x08\x00" and frame[23] == 17
            if udp and rng.random() < loss:
                continue
            count += 1
            heapq.heappush(queue, (time.monotonic() + (delay if udp else 0), count, there, frame))
        while queue and queue[0][0] <= time.monotonic():
            _, _, there, frame = heapq.heappop(queue)
            targets[there].send(frame)


def _certificate(folder: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "server")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "key.pem").write_bytes(key.private_bytes(pem, pkcs8, serialization.NoEncryption()))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _in(namespace: str, *command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["ip", "netns", "exec", f"{PREFIX}{namespace}", *command])


def _wire() -> None:
    for namespace in "cms":
        _run("ip", "netns", "add", f"{PREFIX}{namespace}")
    for side, address in (("c", CLIENT_ADDRESS), ("s", SERVER_ADDRESS)):
        outer, inner = f"{PREFIX}{side}", f"{PREFIX}m"
        _run(
            "ip", "link", "add", f"{side}0", "netns", outer, "type", "veth", "peer", "name", f"{side}1", "netns", inner
        )
        _run("ip", "-n", outer, "addr", "add", f"{address}/24", "dev", f"{side}0")
        for namespace, device in ((outer, f"{side}0"), (inner, f"{side}1")):
            _run("ip", "-n", namespace, "link", "set", device, "up")
            offloads = ("tx", "off", "gso", "off", "gro", "off", "tso", "off")
            _run("ip", "netns", "exec", namespace, "ethtool", "-K", device, *offloads)


def record(name: str, *, size: int, streams: int, loss: float, delay: float, seed: int) -> None:
    """Make the recording in a folder of this name beside this file."""
    target = Path(__file__).parent / name
    target.mkdir(exist_ok=True)
    processes: list[subprocess.Popen[bytes]] = []
    script = [sys.executable, "-m", __spec__.name if __spec__ else __name__]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        _certificate(folder)
        try:
            _wire()
            for side in "cs":
                capture = str(target / ("client.pcap" if side == "c" else "server.pcap"))
                arguments = ("-i", f"{side}0", "-U", "--immediate-mode", "-Z", "root", "-w", capture, "udp")
                processes.append(_in(side, "tcpdump", "-q", *arguments))
            processes.append(
                _in("m", *script, "forward", "--loss", str(loss), "--delay", str(delay), "--seed", str(seed))
            )
            processes.append(_in("s", *script, "server", "--folder", temporary, "--size", str(size)))
            time.sleep(2)
            _in("c", *script, "client", "--folder", temporary, "--streams", str(streams)).wait(60)
            time.sleep(1)
            (folder / "stop").touch()
            processes.pop().wait(10)
        finally:
            for process in processes:
                process.terminate()
                process.wait()
            for namespace in "cms":
                subprocess.run(["ip", "netns", "del", f"{PREFIX}{namespace}"], check=False)
        for file in ("keys.log", "client.qlog.json.gz", "server.qlog.json.gz"):
            (target / file).write_bytes((folder / file).read_bytes())


def main() -> None:
    """Parse the command line. All roles but `record` are for its child processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="of the recording")
    parser.add_argument("--size", type=int, default=24_000, help="bytes of each file")
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--loss", type=float, default=0.0, help="fraction of UDP datagrams, both ways")
    parser.add_argument("--delay", type=float, default=0.025, help="seconds, one way")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path())
    options = parser.parse_args()
    if options.name == "forward":
        forward(options.loss, options.delay, options.seed)
    elif options.name == "server":
        run_server(options.folder, options.size)
    elif options.name == "client":
        run_client(options.folder, options.streams)
    else:
        record(
            options.name,
            size=options.size,
            streams=options.streams,
            loss=options.loss,
            delay=options.delay,
            seed=options.seed,
        )


if __name__ == "__main__":
    main()
