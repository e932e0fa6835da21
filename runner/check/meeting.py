"""Lets one stack meet the hostile peer, in lanes or guests, judges each flight, writes `hostile.json` and a report."""

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import BoundedSemaphore
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.markup import escape

from runner.check.candidate import Candidate, Trial, subject_name, with_stack
from runner.check.flight_verdicts import (
    ERROR,
    FAILED,
    NOTE,
    PASSED,
    UNSUPPORTED_CODE,
    FlightResult,
    counts,
    judge_flights,
    read_log,
    read_usage,
    unsupported,
)
from runner.check.flights import LIST, HostileFlight, load_flights, parse_flight
from runner.decode.capture import embed_secrets
from runner.engine import engine
from runner.errors import LaneError, UsageError, did_you_mean
from runner.images.images import image_facts
from runner.images.setup import prepare
from runner.model.link import Direction, LinkRecord, Queue
from runner.model.result import Artifacts, Evidence
from runner.model.run import VIRTUAL, CaseRecord, Job
from runner.model.stack import Implementation, Role
from runner.paths import LOGS
from runner.places.lane_job import EndpointSpec
from runner.places.place import place_of
from runner.plan.catalog import Catalog, load_catalog
from runner.plan.choice import split
from runner.plan.options import StackOptions
from runner.store.runs import write_atomically

PEER = Implementation(
    name="hostile",
    image="bentpipe/hostile",
    build="implementations/hostile",
    url="https://github.com/aiortc/aioquic",
    version="flights",
    language="Python",
)
"""The hostile peer. It is in no list of stacks, so it never appears in a user's matrix."""
RESULTS = "hostile.json"
REPORT = "hostile.md"
_STYLES = {FAILED: "red", NOTE: "yellow", ERROR: "yellow", PASSED: "green"}
_LINK = LinkRecord.declared(
    "hostile",
    forward=Direction(data_rate=100_000_000, delay=0.002, queue=Queue(packets=1000)),
    return_=Direction(data_rate=100_000_000, delay=0.002, queue=Queue(packets=1000)),
    source="a short link: flights test answers, not transfers",
)
_CHUNK = 150  # most flights of one job; its containers cost more than 30 flights
_SLOTS = {Role.CLIENT: 6, Role.SERVER: 8}  # flights at the same time in a job; each client is a process
_MOST_RESTARTS = 60  # jobs that continue after a server has ended
_CLIENT_SECONDS = 8  # time-out of a client process, besides the seconds of the honest one for each slot
_FLIGHT_SECONDS = 10.0  # most seconds of a flight, with the honest connections after it
_LINES = 5
# Writes the memory (pages) and CPU time (ticks) of all processes of the container to /logs/usage, 20 times a second.
_WATCH = """
watch() {
    local idle file fields pages ticks
    exec {idle}<>/dev/udp/127.0.0.1/9
    while :; do
        pages=0 ticks=0
        for file in /proc/[0-9]*/stat; do
            [[ $file != /proc/$BASHPID/* ]] && read -r file < $file && fields=(${file##*) }) &&
                ((pages += fields[21], ticks += fields[11] + fields[12] + fields[13] + fields[14]))
        done
        echo "$EPOCHREALTIME $pages $ticks"
        read -r -t 0.05 -u $idle
    done > /logs/usage 2> /dev/null
}
"""
# Runs the image's own command once for each flight, in several slots. The peer learns the flight of a slot from a
# datagram to its port 9, so the client can't know it, and has a port for each slot. An image that always uses port 443
# has one slot. A client that fails with an honest peer, twice, meets no flight. A slot claims a flight by making a
# file. A client that our time-out had to kill (137) has hung; it did not crash. A JVM leaves out its slower compiler,
# and keeps the classes that its honest process loaded: each halves the CPU time of a short process. `SECONDS` is the
# clock of bash.
_LOOP = """
[ -x /setup.sh ] && /setup.sh > /dev/null 2>&1
set -C
tell() {
    echo "$1" >&$peer
    read -r -N 1 -t 5 answer <&$peer
}
meet() {
    local urls= url
    if (($2)); then
        for url in $REQUESTS; do urls+=" ${url/:443\\//:$((4430 + $2))/}-$2"; done
        [ $TESTCASE = zerortt ] && urls+="$urls-again-$2" # a second connection
        rm -f /downloads/*-$2
    else
        urls=$REQUESTS
        rm -rf /downloads/*
    fi
    tell "begin $1 $2"
    local began=$SECONDS
    REQUESTS=${urls# } timeout -k 1 $LIMIT "${@:3}"
    code=$?
    ((code == 137 && SECONDS - began >= LIMIT)) && code=124
    tell "end $code $2"
    return $code
}
slot() {
    exec {peer}<>/dev/udp/server4/9
    for flight in $FLIGHTS; do
        { : > "/downloads/.$flight"; } 2> /dev/null && meet $flight "$@"
    done
}
export -n ALONE FLIGHTS
java="-XX:+IgnoreUnrecognizedVMOptions -XX:TieredStopAtLevel=1"
java+=" -XX:+AutoCreateSharedArchive -XX:SharedArchiveFile=/tmp/classes.jsa"
export JAVA_TOOL_OPTIONS="${JAVA_TOOL_OPTIONS:-} $java"
exec {peer}<>/dev/udp/server4/9
LIMIT=40
watch & watcher=$!
meet honest 1 "$@" && [[ $answer == + ]] || { SLOTS=0 SECONDS=0; meet honest 0 "$@"; } || exit $code
LIMIT=$((LIMIT_EACH + SECONDS * (SLOTS ? SLOTS : 1) + 20))
[[ $ALONE ]] && meet honest $((SLOTS > 0)) "$@" # for comparison; the first process of a JVM has stored its classes
for flight in $ALONE; do meet $flight $((SLOTS > 0)) "$@"; done
kill $watcher
((LIMIT -= 20))
for ((number = SLOTS > 0; number <= SLOTS; number++)); do slot $number "$@" & done
wait
rm -f /downloads/.[!.]*
"""


@dataclass(frozen=True)
class Batch:
    """Flights that run in one job: those of `alone` one after the other, then several at the same time. Floods are
    alone, because the memory and the CPU time of the endpoint are measured."""

    role: Role  # under test
    case: str  # wire name
    flights: tuple[HostileFlight, ...]
    alone: tuple[HostileFlight, ...] = ()


def batches(flights: Iterable[HostileFlight], roles: Sequence[Role]) -> Iterator[Batch]:
    """Divide the flights among jobs. The flights of a job share their wire name and, for a server, its process."""
    listed = list(flights)
    for role in roles:
        for case in dict.fromkeys(flight.case for flight in listed):
            chosen = [flight for flight in listed if flight.case == case and role in flight.roles]
            chosen.sort(key=lambda flight: not flight.times)  # one job has all floods
            for at in range(0, len(chosen), _CHUNK):
                yield Batch(role, case, tuple(chosen[at : at + _CHUNK]))


def select_flights(flights: Mapping[str, HostileFlight], names: Sequence[str]) -> list[HostileFlight]:
    """The flights whose names begin with one of `names`; all without names. Raises UsageError."""
    for name in names:
        if not any(flight.startswith(name) for flight in flights):
            hint = did_you_mean(name, flights)
            raise UsageError(f"--case {name}: no flight begins with this name.{hint} {LIST} lists them.")
    return [flight for flight in flights.values() if not names or flight.name.startswith(tuple(names))]


def meet_all(
    options: StackOptions,
    tested: Mapping[str, tuple[Role, ...]],
    *,
    rows: Mapping[str, dict[str, Any]] = MappingProxyType({}),
    out: Console,
    err: Console,
) -> Iterator["Meeting"]:
    """Let the stacks meet the hostile peer, one after the other. Yields each meeting when it is over.

    `tested`: names or images of stacks, with the roles that are tested. The cases of the options are names of flights,
    or their beginnings; without them, all flights.
    """
    listed = {name: parse_flight(name, row) for name, row in rows.items()} or load_flights()
    flights = select_flights(listed, split(options.cases))
    catalog = load_catalog(options.implementations)
    stacks = [(_stack(catalog, named), roles) for named, roles in tested.items()]
    place = place_of(options.clock, say=lambda text: out.print(text, soft_wrap=True))
    # A job of several slots uses a core.
    width = place.width(str(os.cpu_count() or 1) if options.lanes == "auto" else options.lanes)
    own = [*(stack for stack, _ in stacks if stack.build is not None), PEER]
    images = prepare(
        own,
        assume_yes=options.yes,
        extra_cas=options.extra_cas,
        console=err,
        guests=options.clock == VIRTUAL,
    )
    started = time.strftime("%Y-%m-%dT%H%M%S")
    record = catalog.cases["handshake"].record()
    for stack, roles in stacks:
        todo = {_job(stack, batch, number): batch for number, batch in enumerate(batches(flights, roles), start=1)}
        facts = image_facts(engine.connect(), stack.image)
        candidate = Candidate.create(
            folder_of(options.run or f"hostile-{started}", stack.name, alone=len(stacks) == 1),
            stack,
            catalog=with_stack(catalog, PEER),
            peers=(PEER.name,),
            own={job: _case(record, job.case, batch.case) for job, batch in todo.items()},
            facts=facts,
            clock=options.clock,
            seed=1,
            images=images,
        )
        trial = Trial(candidates=(candidate,), place=place, width=width, path=candidate.folder.path)
        meeting = Meeting(trial, flights, command=facts.command, rows=rows, out=out)
        meeting.meet(todo)
        yield meeting


def folder_of(run: str, stack: str, *, alone: bool) -> Path:
    """The folder of a stack's meeting: in logs/checks, or the folder that `run` names. `alone`: no other stack meets
    the peer."""
    return Path(run) if alone and "/" in run else LOGS / "checks" / f"{run}-{stack}"


def _job(stack: Implementation, batch: Batch, number: int) -> Job:
    server, client = (stack.name, PEER.name) if batch.role is Role.SERVER else (PEER.name, stack.name)
    return Job(server=server, client=client, case=f"hostile-{batch.case}", iteration=number)


def _case(handshake: CaseRecord, name: str, wire_name: str) -> CaseRecord:
    return replace(
        handshake,
        name=name,
        case=name,
        wire_names=dict.fromkeys(handshake.wire_names, wire_name),
        link=_LINK,
        timeout=60 + _FLIGHT_SECONDS * _CHUNK,
    )


def _stack(catalog: Catalog, named: str) -> Implementation:
    """The stack with this name or image; a new one for an image that no stack has."""
    for stack in catalog.implementations.values():
        if named in (stack.name, stack.image):
            return stack
    return Implementation(name=subject_name(None, named, ()), image=named, url="", version="")


class Meeting:
    """The jobs of one stack with the hostile peer."""

    def __init__(
        self,
        trial: Trial,
        flights: Sequence[HostileFlight],
        *,
        command: Sequence[str],
        rows: Mapping[str, dict[str, Any]] = MappingProxyType({}),
        out: Console,
    ) -> None:
        """`trial`: of the stack. `command`: the first process of its image. `rows`: flights that the image of the peer
        doesn't have."""
        (candidate,) = trial.candidates
        self.stack, self.path = candidate.entry, trial.path
        self._trial, self._run, self._flights = trial, candidate.folder.run, flights
        self._own = {"ROWS": json.dumps(dict(rows))} if rows else {}
        self._command, self._out = tuple(command), out
        self._lanes = BoundedSemaphore(trial.width.all)
        self.together: list[tuple[str, ...]] = []  # flights during which a server ended that none of them ends alone
        self.results: list[FlightResult] = []

    def meet(self, todo: Mapping[Job, Batch]) -> None:
        """Run all flights, several jobs at the same time."""
        planned = sum(len(batch.flights) for batch in todo.values())
        with (
            self._trial.open(),
            ThreadPoolExecutor(self._trial.width.all + 1, thread_name_prefix="flights") as pool,  # one judges meanwhile
        ):
            for part in pool.map(self._batch, todo.keys(), todo.values()):
                self.results += part
                done = f"{self.stack.name}: {len(self.results)} of {planned} flights done"
                self._out.print(done, soft_wrap=True, markup=False)
                write_atomically(self.path / RESULTS, self.text().encode())

    def text(self) -> str:
        """The content of `hostile.json`."""
        return json.dumps(
            {
                "schema": 1,
                "stack": self.stack.name,
                "image": self.stack.image,
                "version": self.stack.version,
                "clock": self._run.clock,
                "flights": {flight.name: asdict(flight) for flight in self._flights},
                "together": self.together,
                "results": [asdict(result) for result in self.results],
            },
            indent=1,
        )

    def _batch(self, job: Job, batch: Batch) -> list[FlightResult]:
        """Run a batch. When the server ends, another one goes on; the flights that were under way come first, alone."""
        order, results = [flight.name for flight in batch.flights], list[FlightResult]()
        left, suspects = batch.flights, set[str]()
        for restart in range(_MOST_RESTARTS):
            alone = tuple(flight for flight in left if flight.times or flight.name in suspects)
            batch = replace(batch, alone=alone, flights=tuple(flight for flight in left if flight not in alone))
            part = replace(job, iteration=job.iteration + 1000 * restart)
            new, under_way = self._run_flights(part, batch)
            results += new
            done = {result.flight for result in new}
            if suspects <= done and not any(result.crashed for result in new if result.flight in suspects):
                self._innocent(batch, suspects)
            left = tuple(flight for flight in left if flight.name not in done)
            if not left or not (new or under_way - suspects):
                break
            suspects = under_way
        results += (
            FlightResult(flight=flight.name, role=batch.role.value, verdict=ERROR, seen="not run", why="see the job")
            for flight in left
        )
        return sorted(results, key=lambda result: order.index(result.flight))

    def _run_flights(self, job: Job, batch: Batch) -> tuple[list[FlightResult], set[str]]:
        """Run one job. Returns its results, and the flights one of which may have ended the server."""
        folder = self.path / job.path
        names = {
            "ALONE": " ".join(flight.name for flight in batch.alone),
            "FLIGHTS": " ".join(flight.name for flight in batch.flights),
            "SLOTS": str(_SLOTS[batch.role]),
        }
        peer_role = Role.CLIENT if batch.role is Role.SERVER else Role.SERVER
        specs = {(PEER.name, peer_role): EndpointSpec(image=PEER.image, environment=names | self._own)}
        if batch.role is Role.SERVER and any(flight.times for flight in batch.alone):
            command = ("/bin/bash", "-c", _WATCH + 'watch & exec "$@"', "watch", *self._command)
            specs[self.stack.name, Role.SERVER] = EndpointSpec(image=self.stack.image, entrypoint=command)
        if batch.role is Role.CLIENT:
            specs[self.stack.name, Role.CLIENT] = EndpointSpec(
                image=self.stack.image,
                entrypoint=("/bin/bash", "-c", _WATCH + _LOOP, "loop", *self._command),
                environment=names | {"LIMIT_EACH": str(_CLIENT_SECONDS)},
            )
        try:
            with self._lanes:
                evidence = self._trial.place.deployment(self._run, specs).run(job, folder, attempt=1)
        except LaneError as error:
            self._out.print(f"{job}: {error}", soft_wrap=True, markup=False)
            return [], set()
        assert isinstance(evidence, Evidence)
        if batch.role is Role.SERVER and evidence.server.exit_code == UNSUPPORTED_CODE:
            return [unsupported(flight, batch.role) for flight in batch.alone + batch.flights], set()
        artifacts = Artifacts(folder)
        keys, own_keys = (
            [path] if (path := folder / role.value / "keys.log").is_file() else [] for role in (peer_role, batch.role)
        )
        capture = artifacts.server_capture if batch.role is Role.SERVER else artifacts.client_capture
        if not capture.is_file():
            return [], set()
        capture = embed_secrets(capture, keys)
        log = read_log(folder / peer_role.value / "flights.jsonl")
        survived = {line["flight"] for line in log if line.get("alive")}
        under_way = {line["begun"] for line in log if "begun" in line} - survived - {each.name for each in batch.alone}
        judged = [flight for flight in batch.alone + batch.flights if flight.name not in under_way]
        usage = read_usage(folder / batch.role.value / "usage")
        results = judge_flights(
            judged, batch.role, log=log, capture=capture, key_logs=keys, own_key_logs=own_keys, usage=usage
        )
        return [self._with_end(result, evidence, folder) for result in results], under_way

    def _innocent(self, batch: Batch, names: set[str]) -> None:
        """Tell that a server ended during these flights, and that none of them ends it alone."""
        if names:
            self.together.append(tuple(sorted(names)))
            text = f"{self.stack.name} as {batch.role.value} ended during {', '.join(sorted(names))}"
            self._out.print(f"{text}; none of them ends it alone.", soft_wrap=True, markup=False)

    def _with_end(self, result: FlightResult, evidence: Evidence, folder: Path) -> FlightResult:
        """A crash with the exit code and the last words of the process."""
        result = replace(result, job=str(folder.relative_to(self.path)))
        if result.usage is not None and self._run.clock == VIRTUAL:
            result = replace(result, usage=replace(result.usage, cpu_s=None))
        if not result.crashed or result.role != Role.SERVER.value:
            return result
        code = None if evidence.server.stopped_by_us else evidence.server.exit_code
        output = folder / "server" / "output.log"
        words = output.read_text(errors="replace").strip().splitlines()[-_LINES:] if output.is_file() else []
        end = "it hangs" if code is None else f"exit code {code}"
        return replace(result, why=f"{result.why}: {end}. Last words: {' / '.join(words)[:400]}")


def exit_code(results: Iterable[FlightResult]) -> int:
    """0: nothing failed · 1: a flight failed · 3: nothing failed, and a flight has no verdict."""
    verdicts = {result.verdict for result in results}
    return 1 if FAILED in verdicts else 3 if ERROR in verdicts or not verdicts else 0


def show_meeting(console: Console, meeting: Meeting, flights: Mapping[str, HostileFlight]) -> None:
    """Print the results that did not pass, and the number of each verdict; write the report."""
    for result in meeting.results:
        if result.verdict in (FAILED, NOTE, ERROR):
            style, flight = _STYLES[result.verdict], flights[result.flight]
            why = f"; {result.why}" if result.why else ""
            console.print(
                f"[{style}]{result.verdict:6}[/] {result.role} {flight.name} ({flight.section})", soft_wrap=True
            )
            console.print(f"       {escape(f'{result.seen}{why}')}", soft_wrap=True, highlight=False)
    path = meeting.path / REPORT
    text = markdown(meeting.stack, meeting.path, meeting.results, flights)
    for names in meeting.together:
        text += (
            f"\n- The server ended while these flights were under way; none of them ends it alone: {', '.join(names)}"
        )
    path.write_text(text)
    for role in Role:
        part = counts(result for result in meeting.results if result.role == role.value)
        if part:
            numbers = ", ".join(f"{number} {verdict}" for verdict, number in part.items())
            console.print(f"{meeting.stack.name} as {role.value}: {numbers}", soft_wrap=True, markup=False)
    console.print(f"report {path}", soft_wrap=True, markup=False)


def markdown(
    stack: Implementation, path: Path, results: Sequence[FlightResult], flights: Mapping[str, HostileFlight]
) -> str:
    """The report of a stack. Each failed flight can be pasted into the stack's issue tracker."""
    lines = [f"# {stack.name} and the hostile peer", ""]
    for verdict, title in ((FAILED, "Failed"), (NOTE, "Notes"), (ERROR, "Without a verdict")):
        chosen = [result for result in results if result.verdict == verdict]
        lines += [f"## {title}: {len(chosen)}", ""] if chosen else []
        for result in chosen:
            lines += [*_entry(stack, path, result, flights[result.flight]), ""]
    measured = [f"- {each.flight}, as {each.role}: {each.usage.text}" for each in results if each.usage is not None]
    if measured:
        lines += ["## Memory and CPU time in floods", "", *measured, ""]
    return "\n".join(lines)


def _entry(stack: Implementation, path: Path, result: FlightResult, flight: HostileFlight) -> list[str]:
    ends = "server" if result.role == Role.SERVER.value else "client"
    capture = path / result.job / "sim" / f"{'right' if ends == 'server' else 'left'}.pcapng"
    numbers = ",".join(map(str, (*result.sent, *result.answers)))
    lines = [
        f"### {flight.name}, as {ends}",
        "",
        f"- tested: {' '.join(filter(None, (stack.name, stack.version)))} as {ends}, image {stack.image}",
        f"- rule: {flight.must} ({', '.join(filter(None, (flight.section, flight.level, flight.rule)))})",
        f"- sent by the peer (in the words of bentpipe's flights.toml): `{flight.sent}`",
        f"- expected: {flight.expected}",
        f"- actual: {result.seen}",
    ]
    if result.why and not result.why.startswith("expected "):
        lines.append(f"- {result.why}")
    if result.usage is not None:
        lines.append(f"- {result.usage.text}")
    if numbers:
        lines.append(
            f"- packets (secrets are in the file): `tshark -r {capture} -Y 'frame.number in {{{numbers}}}' -V`"
        )
    return [*lines, f"- again: `./bentpipe check {stack.image} --hostile --case {flight.name}`"]
