"""Compares the flights of stored meetings (docs/hostile.md) with what tshark sees.

    .venv/bin/python -m lab.flights_crosscheck FOLDER …

For each datagram of a flight that both decoders open, both must see the same frame types. At a malformed frame or
an unknown type one of them may stop earlier; then the types before it are compared.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lab.tshark import rows
from runner.decode.columns import integers
from runner.decode.decode import decode_capture
from runner.model.stack import Role

_FIELDS = ("frame.number", "quic.frame_type", "quic.decryption_failed")
_PADDING = 0


def compare(meeting: Path) -> Iterator[tuple[str, str, str, list[int], list[int]]]:
    """For each datagram of a flight: role, flight, verdict, types by tshark, types by our decoder."""
    by_job: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for result in json.loads((meeting / "hostile.json").read_text())["results"]:
        if result["sent"]:
            by_job[result["job"]].append(result)
    for job, results in by_job.items():
        side = "right" if results[0]["role"] == Role.SERVER.value else "left"
        capture = meeting / job / "sim" / f"{side}.pcapng"
        ours = _own_types(capture)
        numbers = {number for result in results for number in result["sent"]}
        shown = f"frame.number in {{{','.join(map(str, sorted(numbers)))}}}"
        listed = rows(capture, shown, *_FIELDS, options=("-d", "udp.port==443,quic"))
        seen = {int(row["frame.number"][0]): row for row in listed}
        for result in results:
            for number in result["sent"]:
                row, own = seen.get(number, {}), ours.get(number, [])
                other = [int(value, 0) for value in row.get("quic.frame_type", [])]
                verdict = _verdict(_runs(other), own, unopened=bool(row.get("quic.decryption_failed")))
                yield result["role"], result["flight"], verdict, _runs(other), own


def _own_types(capture: Path) -> dict[int, list[int]]:
    """Record → the frame types of its packets, with a run of PADDING as one. An unreadable frame is left out."""
    trace = decode_capture(capture)
    records = integers(trace.datagrams["record"])[integers(trace.packets["datagram"])]
    types: dict[int, list[int]] = defaultdict(list)
    frames = trace.frames
    for packet, kind, name in zip(
        integers(frames["packet"]).tolist(), integers(frames["type"]).tolist(), frames["name"].to_pylist(), strict=True
    ):
        if name != "unknown":
            types[int(records[packet])].append(kind)
    return {record: _runs(kinds) for record, kinds in types.items()}


def _runs(kinds: list[int]) -> list[int]:
    return [kind for at, kind in enumerate(kinds) if kind != _PADDING or at == 0 or kinds[at - 1] != _PADDING]


def _verdict(other: list[int], own: list[int], *, unopened: bool) -> str:
    if unopened or (not other and not own):
        return "not opened by tshark" if own else "opened by neither"
    shorter = min(len(other), len(own))
    return "equal" if other == own else "equal until one stops" if other[:shorter] == own[:shorter] else "different"


def main(meetings: list[Path]) -> int:
    """Print the differences and the number of each verdict. The exit code is 1 when there is a difference."""
    numbers: dict[str, int] = defaultdict(int)
    for meeting in meetings:
        for role, flight, verdict, other, own in compare(meeting):
            numbers[verdict] += 1
            if verdict not in ("equal", "opened by neither"):
                print(f"{meeting.name} {role} {flight}: {verdict}: tshark {other}, bentpipe {own}")
    print(dict(numbers))
    return 1 if numbers["different"] else 0


if __name__ == "__main__":
    raise SystemExit(main([Path(argument) for argument in sys.argv[1:]]))
