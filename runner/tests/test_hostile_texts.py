"""Hostile text in a real connection (SNI, ALPN, path, header, close reason), in qlogs and in outputs: no page and no
terminal obeys it."""

import json
import shutil
import struct
from dataclasses import replace
from pathlib import Path
from socket import inet_aton

from aioquic.h3.connection import H3Connection
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import HandshakeCompleted, StreamDataReceived
from click.testing import CliRunner

from lab.run_folders import QLOG, run
from runner.cli.group import main
from runner.inputs.inputs import certificates
from runner.judge.judges import analyse
from runner.model.run import Job
from runner.plan.catalog import Catalog
from runner.site import render
from runner.store.runs import RunFolder
from runner.tests.decode.rewrite import Record, write_pcap
from runner.tests.records import RECORDINGS
from runner.units import UNPRINTABLE

SCRIPT = "<script>alert(1)</script>"
OBEYED = "\x1b[31m\x07"


class _Text(str):
    """aioquic encodes names as ASCII, and refuses others."""

    __slots__ = ()

    def encode(self, *_: str) -> bytes:
        return super().encode()


HOSTILE = _Text(f"</script>{SCRIPT}{OBEYED}\"'[bold]{{{{7*7}}}}")


def _connection(folder: Path, alpn: str) -> list[Record]:
    """The datagrams of one request and its answer. Writes `keys.log`."""
    records: list[Record] = []
    addresses = [("193.167.0.100", 40000), ("193.167.100.100", 443)]
    ends = [(inet_aton(address), port) for address, port in addresses]
    for name, content in certificates().files().items():
        (folder / name).write_bytes(content)
    with (folder / "keys.log").open("w") as keys:
        settings = QuicConfiguration(alpn_protocols=[alpn], server_name=HOSTILE, secrets_log_file=keys, verify_mode=0)
        client = QuicConnection(configuration=settings)
        client.connect(addresses[1], now=0.0)
        settings = QuicConfiguration(is_client=False, alpn_protocols=[alpn], secrets_log_file=keys)
        settings.load_cert_chain(folder / "cert.pem", folder / "priv.key")
        odcid = client.original_destination_connection_id
        server = QuicConnection(configuration=settings, original_destination_connection_id=odcid)
        for turn in range(40):
            sender, receiver, names = (client, server, ends) if turn % 2 == 0 else (server, client, ends[::-1])
            while (event := sender.next_event()) is not None:
                if isinstance(event, HandshakeCompleted) and sender is client:
                    client.send_stream_data(0, b"GET /" + HOSTILE.encode() + b"\r\n", end_stream=True)
                    if alpn == "h3":
                        path = (b":path", b"/" + HOSTILE.encode())
                        H3Connection(client).send_headers(4, [(b":method", b"GET"), path], end_stream=True)
                elif not isinstance(event, StreamDataReceived) or not event.end_stream:
                    continue
                elif sender is server and event.stream_id == 0:
                    server.send_stream_data(0, b"content", end_stream=True)
                elif sender is client:
                    client.close(error_code=0x101, reason_phrase=f"{HOSTILE}\u202e\0")
            now = 0.02 * (turn + 1)
            for data, _ in sender.datagrams_to_send(now):
                (source, source_port), (target, target_port) = names
                udp = struct.pack(">HHHH", source_port, target_port, 8 + len(data), 0) + data
                ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0) + source + target
                records.append(Record(round((1.7e9 + now) * 1e9), bytes(12) + b"\x08\0" + ip + udp))
                receiver.receive_datagram(data, addresses[sender is server], now)
    return records


def _stored(folder: RunFolder, job: Job, catalog: Catalog, scratch: Path, alpn: str) -> None:
    """Save a job whose record is such a connection, and whose texts are hostile."""
    artifacts = folder.artifacts(job)
    shutil.copytree(RECORDINGS / "quinn_quinn/lossy/1", artifacts.folder)
    records = _connection(scratch, alpn)
    for side in ("left", "right"):
        write_pcap(artifacts.folder / f"sim/{side}.pcap", records)
    for role in ("client", "server"):
        shutil.copy(scratch / "keys.log", artifacts.folder / role)
        (artifacts.folder / role / "output.log").write_text(f"{HOSTILE}\n" * 3)
        (artifacts.folder / role / "qlog").mkdir()
        text = QLOG.replace('"transport:packet_sent"', json.dumps(HOSTILE)).replace(
            '"trace":{}', f'"title":{json.dumps(HOSTILE)}'
        )
        (artifacts.folder / role / "qlog/a.sqlog").write_text(text)
    truth = json.loads((artifacts.folder / "sim/truth.json").read_text())
    for direction, address in (("forward", "193.167.100.100"), ("return", "193.167.0.100")):
        count = sum(record.frame[26:30] == inet_aton(address) for record in records)
        truth[direction].update(packets_in=count, packets_out=count, dropped_loss=0, dropped_queue=0)
    (artifacts.folder / "sim/truth.json").write_text(json.dumps(truth))
    case = catalog.cases[job.case]
    folder.save_result(analyse(job, artifacts, case, replace(case.record(), iterations=1)))


def test_no_page_and_no_terminal_obeys_it(tmp_path: Path, catalog: Catalog) -> None:
    jobs = [Job(server="quinn", client="quinn", case=case, iteration=1) for case in ("handshake", "http3")]
    cases = {job.case: replace(catalog.cases[job.case].record(), iterations=1) for job in jobs}
    folder = RunFolder.create(tmp_path / "run", run("run", cases, tuple(jobs)))
    for job, alpn in zip(jobs, (HOSTILE, "h3"), strict=True):
        _stored(folder, job, catalog, tmp_path, alpn)
    codes = {finding.code for result in folder.results().values() for finding in result.findings}
    assert {"closed-with-error", "wrong-alpn"} <= codes, "the texts were read"

    render([folder], tmp_path / "site")
    pages = {path: path.read_text() for path in (tmp_path / "site").rglob("*.html")}
    assert any("alert(1)" in page for page in pages.values())
    for path, page in pages.items():
        assert SCRIPT not in page, path
        assert not UNPRINTABLE.search(page), path

    printed: list[tuple[str, ...]] = [("show", str(folder.artifacts(job).folder)) for job in jobs]
    capture = folder.artifacts(jobs[0]).folder / "sim/left.pcap"
    printed.append(("decode", str(capture), "--keys", str(folder.artifacts(jobs[0]).folder / "client/keys.log")))
    for arguments in printed:
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 0, done.output
        assert "alert(1)" in done.output
        assert not UNPRINTABLE.search(done.output), arguments
