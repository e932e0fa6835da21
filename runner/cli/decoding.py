"""The command `decode`. It imports neither rich, nor the catalogue, nor pyarrow: their import takes longer than
decoding a small capture."""

import gc
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from runner.cli.group import main
from runner.files import without_collection
from runner.units import format_count, printable


@main.command()
@click.argument("capture", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--keys",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Key log with TLS secrets. Repeat the option for several key logs.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON document.")
def decode(capture: Path, keys: tuple[Path, ...], as_json: bool) -> None:
    """Decode the QUIC packets of any capture file.

    docs/decode.md lists the file formats, link layers and QUIC versions that are read.
    """
    # NumPy's OpenBLAS starts a thread for each CPU, which waits busily and has nothing to do here.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with without_collection():
        from runner.decode.decode import describe_capture
    document = describe_capture(capture, keys, details=as_json)
    for sentence in _unread(document, with_keys=bool(keys)):
        click.echo(_printable(sentence), err=True)
    click.echo(json.dumps(document, indent=1) if as_json else "\n".join(decoded_lines(document)))
    gc.freeze()  # Python's end then searches no objects for unused cycles


def _printable(text: object) -> str:
    return printable(str(text))


def _unread(document: dict[str, Any], *, with_keys: bool) -> Iterator[str]:
    """Sentences about what was not read, and why."""
    from runner.decode.keys import VERSIONS

    for why, count in document["skipped_udp"].items():
        yield f"{format_count(count, 'UDP packet')} not read: {why}."
    for content, count in document["not_udp"].items():
        yield f"{format_count(count, 'record')} without a UDP packet that can be read: {content}."
    yield from document["remarks"]
    if not document["records"]:
        yield f"{document['file_name']} has no packets: no packet came, or the capture filter let none through."
    elif not document["datagrams"]:
        records = format_count(document["records"], "record")
        yield f"No QUIC packet was found in the {records} of {document['file_name']}."
    if document["backwards_ns"] >= 1e8:
        step = document["backwards_ns"] / 1e9
        yield f"Times step back by up to {step:.1f} s: the clock was set, or files were joined."
    if document["snapped"]:
        yield f"{format_count(document['snapped'], 'record')} cut off by the snap length: capture whole packets."
    if not document["connections"] and not document["packets_by_type"].keys() <= {"unknown"}:
        yield "The capture has no handshake of these packets: start it before the client, and give --keys FILE."
    # Keys help with versions that are read, and with drafts from 29 on, whose 1-RTT packets differ little.
    versions = {row[name] for row in document["connections"] for name in ("version", "original_version")}
    readable = not versions.isdisjoint((*VERSIONS, *range(0xFF00001D, 0xFF000023)))
    secrets = with_keys or any(row["secrets"] for row in document["connections"])
    if document["undecrypted"] and readable and not secrets:
        yield "Without a key log (--keys FILE), only Initial packets can be decrypted."


def decoded_lines(document: dict[str, Any]) -> Iterator[str]:
    """The contents of a capture as lines of text. Nothing is cut: values come from the capture and can be long."""
    layers = [document["link_type"], *(f"{name} ({count})" for name, count in document["headers"].items())]
    yield f"link layer     {', '.join(layers)}"
    for name in ("datagrams", "packets", "frames", "stream_frames", "stream_bytes", "undecrypted"):
        kinds = ", ".join(f"{kind} {count}" for kind, count in document.get(f"{name}_by_type", {}).items())
        more = f" ({kinds})" if kinds else ""
        yield f"{name.replace('_', ' '):<14} {document[name]}{more}"
    for row in document["connections"]:
        yield ""
        yield from map(_printable, _connection(row))
    yield ""
    for check in document["invariants"]:
        sign, colour = {True: ("✓", "green"), False: ("✗", "red"), None: ("?", None)}[check["holds"]]
        actual = "not known" if check["actual"] is None else f"expected {check['expected']}, got {check['actual']}"
        yield f"{click.style(sign, fg=colour)} {check['name']}: {actual}"


def _connection(row: dict[str, Any]) -> Iterator[str]:
    from runner.decode.keys import VERSIONS
    from runner.decode.wire import version_name

    client, server = (_end(row[f"{role}_ip"], row[f"{role}_port"]) for role in ("client", "server"))
    yield f"connection {row['connection']}: {client} → {server}"
    version = row["version"] if row["version"] is not None else row["original_version"]
    if version is not None:
        name = version_name(version)
        yield f"  QUIC version {name}" if version in VERSIONS else f"  QUIC: {name}, which bentpipe does not read"
    if row["negotiated_versions"]:
        yield f"  Version Negotiation lists {', '.join(map(version_name, row['negotiated_versions']))}"
    if row["odcid"] is not None:
        yield f"  first destination connection ID {row['odcid'] or '(empty)'}"
    named = {"ALPN": row["alpn"], "suite": row["suite"], "SNI": row["sni"]}
    facts = [f"{name} {value}" for name, value in named.items() if value is not None]
    facts += ["Retry"] if row["retry"] else []
    facts += [] if row["resumed"] is None else ["resumed" if row["resumed"] else "not resumed"]
    if facts:
        yield f"  {', '.join(facts)}"


def _end(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
