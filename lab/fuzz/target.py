"""The code that handles an input. For any input only one exception is allowed: `CaptureError` of the decoder."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import isfinite
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from lab.fuzz import mutations
from lab.fuzz.seeds import Seed, pieces, qlogs, seeds
from runner.decode import Trace, decode_capture, job_checks
from runner.decode import decoder as rescue
from runner.decode import to_json as trace_to_json
from runner.decode.capture import capture_of, read_datagrams
from runner.decode.columns import PACKET_TYPES, SPACES, TABLES
from runner.decode.decode import decode_datagrams
from runner.decode.keys import read_key_logs
from runner.decode.wire import FRAME_NAMES
from runner.diagnose.explain import explained
from runner.errors import CaptureError
from runner.judge.judges import analyse
from runner.judge.readback import readings
from runner.model.result import Artifacts, Result
from runner.model.run import Job
from runner.plan.catalog import Catalog, load_catalog
from runner.store.runs import save_evidence
from runner.trace.establish import facts
from runner.trace.measure import sample
from runner.trace.plots import congestion_window, series
from testcases.base import CaseEvidence

# Inputs of each kind in a thousand. Every capture goes through the decoder. With tables an input takes three times as
# long, with facts and checks thirty times. These depend only on the decoder's rows, which are often similar, so a small
# share of the inputs is enough for them.
_KINDS = {"bytes": 230, "records": 200, "frames": 307, "keys": 60, "qlogs": 200, "tables": 3}
_PIECES = 0.9  # share of the captures; the others are whole recordings
_TABLES = 0.06
_DEEP = {"bytes": 0.005, "records": 0.008, "frames": 0.012, "keys": 0.005}
_WHOLE = 0.2  # share of the deep inputs that go through the whole judge, with files
# A search for lost keys without success takes half a second, so 9,997 of 10,000 inputs get only a thousandth of it.
_SHORT_SEARCH, _SHORT = 0.9997, 100
_REPORTED = 0.25  # share of the tables that are also written as JSON
_LONG = rescue._ATTEMPTS
_ROWS = frozenset({"packet", "datagram", "connection"})  # columns whose values are rows of another table


@cache
def _catalog() -> Catalog:
    return load_catalog()


class Target:
    """Makes and handles inputs by number. `folder` is a scratch folder, in a memory file system for speed."""

    def __init__(self, folder: Path, series_seed: int) -> None:
        self._folder = folder
        self._series_seed = series_seed
        self.counts: dict[str, int] = {}
        """Number of inputs so far by kind, number of inputs that became tables, and number of inputs that went through
        facts and checks (`deep`)."""

    def __call__(self, number: int) -> None:
        """Make input `number` and handle it. Raises every exception of the tested code."""
        rng = Random(f"{self._series_seed}/{number}")
        kind = rng.choices(tuple(_KINDS), tuple(_KINDS.values()))[0]
        self._count(kind)
        if kind == "qlogs":
            self._qlog(rng)
        elif kind == "tables":
            self._tables(rng, rng.choice(seeds()))
        else:
            self._captures(rng, rng.choice(pieces() if rng.random() < _PIECES else seeds()), kind)

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def _captures(self, rng: Random, seed: Seed, kind: str) -> None:
        made = mutations.CAPTURE_KINDS[kind](rng, seed)
        rescue._ATTEMPTS = _SHORT if rng.random() < _SHORT_SEARCH else _LONG
        deep = rng.random() < _DEEP[kind]
        if deep and rng.random() < _WHOLE:
            self._judged(rng, seed, made)
            return
        if not deep and rng.random() >= _TABLES:
            _rows(made)
            return
        self._count("in tables")
        keys = self._write("keys.log", made.keys)
        try:
            client = decode_capture(self._write("left.pcap", made.client), [keys])
            server = seed.traces[1]
            if made.server is not None and deep:
                server = decode_capture(self._write("right.pcap", made.server), [keys])
        except CaptureError:
            return
        if deep or rng.random() < _REPORTED:
            json.dumps(trace_to_json(client), allow_nan=False)
        if deep:
            sides: tuple[Trace | None, Trace | None] = (client, server)
            self._deep(seed, *rng.choice((sides, sides, (server, client), (client, None), (None, client))))

    def _write(self, name: str, data: bytes) -> Path:
        path = self._folder / name
        path.write_bytes(data)
        return path

    def _deep(self, seed: Seed, client: Trace | None, server: Trace | None) -> None:
        """Calculate facts, numbers, plots, diagnoses and invariants, and call every check of every case."""
        self._count("deep")
        recorded_facts = facts(client, server)
        record = _catalog().cases["handshake"].record()
        sizes = tuple(file.size for file in seed.evidence.files)
        link = {"forward": record.forward, "return_": record.return_}
        numbers = sample(client, server, recorded_facts, file_sizes=sizes, **link)
        drawn = series(client, server, recorded_facts, numbers, file_sizes=sizes, **link)
        json.dumps(drawn, allow_nan=False)
        if client is not None and server is not None:
            why = explained(client, server, recorded_facts, numbers, record=record, truth=seed.truth)
            assert all(isfinite(one.start) and isfinite(one.end) for one in why.diagnoses)
            job_checks(client, server, sizes)
        readings(Artifacts(seed.folder), seed.evidence, recorded_facts, numbers)
        for case in _catalog().cases.values():
            context = CaseEvidence(
                facts=recorded_facts,
                evidence=seed.evidence,
                case=case.record(),
                truth=seed.truth,
                protocol="hq-interop",
            )
            # The judge calls no check for a recording without a connection.
            for check in (*case.preconditions, *case.capabilities, *case.checks) if recorded_facts.connections else ():
                for finding in check(context):
                    json.dumps((finding.actual, finding.expected, finding.places, finding.times), allow_nan=False)

    def _judged(self, rng: Random, seed: Seed, made: mutations.Captures) -> None:
        """Let the judge judge a job's folder by a random case, and encode its result as for the store."""
        self._count("deep")
        self._count("judged")
        for role in ("client", "server", "sim"):
            (self._folder / "job" / role).mkdir(parents=True, exist_ok=True)
        artifacts = Artifacts(self._folder / "job")
        save_evidence(artifacts, seed.evidence)
        artifacts.client_capture.write_bytes(made.client)
        artifacts.server_capture.write_bytes(made.server or seed.captures[1])
        (artifacts.folder / "client" / "keys.log").write_bytes(made.keys)
        text = (seed.folder / "sim" / "truth.json").read_bytes()
        artifacts.link_truth.write_bytes(text if rng.randrange(4) else mutations.changed_bytes(rng, text))
        name = rng.choice(sorted(_catalog().cases))
        case = _catalog().cases[name]
        sizes = tuple(file.size for file in seed.evidence.files)
        job = Job(server="s", client="c", case=name, iteration=1)
        result = analyse(job, artifacts, case, replace(case.record(), file_sizes=sizes))
        assert isinstance(result, Result)
        json.dumps([finding.actual for finding in result.findings], allow_nan=False)

    def _qlog(self, rng: Random) -> None:
        seed = rng.choice(seeds())
        folder = self._folder / "qlogs"
        role = rng.choice(("client", "server"))
        (folder / role / "qlog").mkdir(parents=True, exist_ok=True)
        (folder / role / "qlog" / "any.sqlog").write_bytes(mutations.of_qlog(rng, rng.choice(qlogs())))
        requested = rng.choice(({}, {"CCA": "cubic", "IW": "10", "ACK_FREQUENCY": "4"}))
        endpoint = replace(seed.evidence.server, environment={**seed.evidence.server.environment, **requested})
        readings(Artifacts(folder), replace(seed.evidence, client=endpoint, server=endpoint), None, None)
        window = congestion_window(folder / role / "qlog", rng.choice((0, round(seed.evidence.started_unix_s * 1e9))))
        if window is not None:
            json.dumps(window.at(np.sort(window.time_ns)), allow_nan=False)

    def _tables(self, rng: Random, seed: Seed) -> None:
        """Tables with other values that the schema allows. A run from another person may have such tables."""
        side = rng.randrange(2)
        trace = seed.traces[side]
        changed = {}
        for name in rng.sample(sorted(TABLES), rng.randint(1, 3)):
            changed[name] = _changed_table(rng, getattr(trace, name), TABLES[name])
        odd, other = replace(trace, **changed), seed.traces[1 - side]
        self._deep(seed, *((odd, other) if side == 0 else (other, odd)))


def _rows(made: mutations.Captures) -> None:
    """Call only the decoder, and check that it collects whole rows of 64-bit numbers."""
    try:
        file = capture_of(made.client, Path("left.pcap"))
    except CaptureError:
        return
    datagrams = read_datagrams(file)
    decoder, _ = decode_datagrams(datagrams, read_key_logs((), (made.keys, *file.secrets))[0])
    frames = decoder.rows.frames
    for rows in (decoder.rows.packets, frames.streams, frames.acks, frames.ranges, frames.others):
        rows.settle()


def _changed_table(rng: Random, table: pa.Table, schema: pa.Schema) -> pa.Table:
    rows = table.to_pylist()
    for _ in range(rng.randint(1, 10) if rows else 0):
        field = schema.field(rng.choice([name for name in schema.names if name not in _ROWS]))
        row = rng.choice(rows)
        donor = rng.choice(rows)[field.name]
        known = _KNOWN.get((field.name, str(field.type)[:4]))
        made = [donor, rng.choice(known) if known else _value(rng, field.type)]
        made += [] if field.name in _NEVER_NULL else [None]
        row[field.name] = rng.choice(made)
    return pa.Table.from_pylist(rows, schema=schema)


# Columns that the decoder always fills.
_NEVER_NULL = frozenset(
    {"time_ns", "sender", "src", "dst", "src_port", "dst_port", "payload_length", "ip_length", "ecn", "ip_version"}
    | {"index", "type", "length", "decrypted", "frame", "stream_id", "offset", "fin", "space", "largest", "delay_us"}
    | {"ranges", "name", "retry", "early_data_offered", "client_hello_count", "certificate", "first_time_ns"}
    | {"client_ip", "client_port", "server_ip", "server_port"}
)
# (column, beginning of its type) → values that the schema names. The type is needed because `type` is a number in one
# table.
_KNOWN: dict[tuple[str, str], tuple[Any, ...]] = {
    ("type", "dict"): PACKET_TYPES,
    ("space", "dict"): SPACES,
    ("name", "dict"): tuple(FRAME_NAMES.values()),
    ("sender", "int8"): (-1, 0, 1),
    ("ecn", "int8"): (0, 1, 2, 3),
    ("ip_version", "int8"): (4, 6),
    ("key_phase", "int8"): (0, 1),
}
_INTEGERS: tuple[tuple[pa.DataType, int, int], ...] = (
    (pa.int8(), 0, 127),
    (pa.int16(), 0, 2**15 - 1),
    (pa.int32(), 0, 2**31 - 1),
    (pa.int64(), 0, 2**62 - 1),
    (pa.uint16(), 0, 2**16 - 1),
    (pa.uint32(), 0, 2**32 - 1),
)


def _value(rng: Random, kind: pa.DataType) -> Any:
    for integer, low, high in _INTEGERS:
        if kind == integer:
            return max(low, min(mutations.number(rng), high))
    if pa.types.is_boolean(kind):
        return bool(rng.randrange(2))
    if pa.types.is_binary(kind):
        return rng.randbytes(rng.choice((0, 1, 4, 8, 20, 300)))
    if pa.types.is_list(kind):
        return [_value(rng, kind.value_type) for _ in range(rng.randrange(4))]
    if pa.types.is_struct(kind):
        return {field.name: _value(rng, field.type) for field in kind}
    return rng.choice(("", "initial", "1rtt", "stream", "ack", "{}", "[", '{"initial_max_data": -1}', "fe80::1"))


def load() -> None:
    """Load all seeds and all data for judging, so that a forked worker already has them."""
    seeds(), pieces(), qlogs(), _catalog()


def scratch() -> Path:
    """The folder for inputs: in memory, if the host has a memory file system."""
    memory = Path("/dev/shm")
    return memory if os.access(memory, os.W_OK) else Path("/tmp")


Inputs = Callable[[int], object]
"""A function that makes and handles the input with a number."""
