"""Tests that `ci` finds a fault that is planted in head, and nothing else.

Each fault is an image made from a stack of this project. The first set wraps quinn: a script that runs before quinn's
endpoint changes TESTCASE or ends the endpoint. The second set changes lines of aioquic's source. `hits` selects the
matrix cells that a fault can affect. Any other cell that is called worse is a false alarm.
"""

import argparse
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from runner.check.cell import CellPlace
from runner.check.change import CellState, ChangeReport
from runner.check.two_builds import compare_builds
from runner.model.stack import Role
from runner.plan.catalog import load_catalog
from runner.plan.options import BuildOptions
from runner.units import MIB
from testcases.base import Case

CASES = (
    "handshake,retry,resumption,zerortt,http3,chacha20,keyupdate,ecn,multiplexing,ipv6,longrtt,transfer,rebind-port,"
    "handshakeloss,transferloss,versionnegotiation,amplificationlimit,goodput"
)
_LIBRARY = "/opt/aioquic/lib/python3.13/site-packages/aioquic"
_PREFIX = "bentpipe-test/planted-"

Hits = Callable[[Case, Role], bool]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault in an image. `lines`: the lines that are added to its Dockerfile. `hits`: whether the fault can affect a
    case in a role of the stack."""

    name: str
    stack: str
    lines: str
    hits: Hits


def _named(role: Role, *names: str) -> Hits:
    """Select these cases, for a stack in this role."""
    return lambda case, of: of is role and case.name in names


def _testcase(role: Role, name: str) -> Hits:
    """Select the cases in which the endpoint of this role gets this TESTCASE."""
    return lambda case, of: of is role and case.record().wire_names[role.value] == name


def _large(role: Role, size: int) -> Hits:
    """Select the cases with a file of at least `size` bytes, for a stack in this role."""
    return lambda case, of: of is role and max(case.files) >= size


def _wrapper(name: str, body: str, hits: Hits) -> Fault:
    """A script that replaces quinn's /run_endpoint.sh. At its end it runs the original script, `/run_good.sh`."""
    script = "\\n".join(("#!/bin/bash", *body.splitlines(), "exec /run_good.sh"))
    lines = (
        f"RUN mv /run_endpoint.sh /run_good.sh && printf '{script}\\n' > /run_endpoint.sh && chmod +x /run_endpoint.sh"
    )
    return Fault(name=name, stack="quinn", lines=lines, hits=hits)


def _swap(role: Role, sent: str, instead: str) -> str:
    return f"if [[ $ROLE == {role} && $TESTCASE == {sent} ]]; then export TESTCASE={instead}; fi"


def _exit_if(condition: str) -> str:
    return f"if [[ {condition} ]]; then exit 1; fi"


_CORRUPT = """if [[ $ROLE == client ]]; then
/run_good.sh; code=$?
for file in /downloads/*; do if [[ $(stat -c %%s "$file") -gt 8000000 ]]; then echo >> "$file"; fi; done
exit $code
fi"""
_SLOW = {"longrtt", "handshakeloss", "handshakecorruption", "transferloss", "transfer", "rebind-port", "goodput", "sat"}
_LIMITED = """if [[ $ROLE == client ]]; then exec timeout 3 /run_good.sh; fi"""

WRAPPED = (
    _wrapper("chacha20", _swap(Role.CLIENT, "chacha20", "transfer"), _named(Role.CLIENT, "chacha20")),
    _wrapper("retry", _swap(Role.SERVER, "retry", "transfer"), _named(Role.SERVER, "retry")),
    _wrapper("resumption", _swap(Role.CLIENT, "resumption", "transfer"), _named(Role.CLIENT, "resumption")),
    _wrapper("zerortt", _swap(Role.CLIENT, "zerortt", "resumption"), _named(Role.CLIENT, "zerortt")),
    _wrapper("keyupdate", _swap(Role.CLIENT, "keyupdate", "transfer"), _named(Role.CLIENT, "keyupdate")),
    _wrapper("http3", _exit_if("$ROLE == server && $TESTCASE == http3"), _named(Role.SERVER, "http3")),
    _wrapper("multiconnect", _swap(Role.CLIENT, "multiconnect", "transfer"), _testcase(Role.CLIENT, "multiconnect")),
    _wrapper("streams", _exit_if("$ROLE == client && ${#REQUESTS} -gt 4000"), _named(Role.CLIENT, "multiplexing")),
    _wrapper("ipv6", _exit_if('$ROLE == client && "$REQUESTS" == *server6*'), _named(Role.CLIENT, "ipv6")),
    _wrapper("byte", _CORRUPT, _large(Role.CLIENT, 8_000_000)),
    _wrapper("limit", _LIMITED, lambda case, of: of is Role.CLIENT and case.name in _SLOW),
    _wrapper("unsupported", "if [[ $TESTCASE == ecn ]]; then exit 127; fi", lambda case, _: case.name == "ecn"),
    _wrapper("window", "if [[ $ROLE == server ]]; then export IW=1; fi", _named(Role.SERVER, "goodput", "sat")),
    _wrapper("handshake", _exit_if("$ROLE == server && $TESTCASE == handshake"), _testcase(Role.SERVER, "handshake")),
)


def _changed(name: str, file: str, old: str, new: str, hits: Hits) -> Fault:
    """Change one line of aioquic's source, which must occur once."""
    change = (
        f"import pathlib; p = pathlib.Path('{file}'); t = p.read_text(); "
        f"assert t.count('{old}') == 1, t.count('{old}'); p.write_text(t.replace('{old}', '{new}'))"
    )
    return Fault(name=name, stack="aioquic", lines=f'RUN /opt/aioquic/bin/python -c "{change}"', hits=hits)


_CONNECTION = f"{_LIBRARY}/quic/connection.py"
CHANGED = (
    _changed("no-path-response", _CONNECTION, "< MAX_REMOTE_CHALLENGES", "< 0", lambda case, _: "rebind" in case.name),
    _changed("no-credit", _CONNECTION, "if limit.value != limit.sent:", "if False:", _large(Role.CLIENT, MIB)),
    _changed(
        "no-key-update",
        f"{_LIBRARY}/quic/crypto.py",
        "if key_phase != self.key_phase:",
        "if False:",
        # quic-go updates its keys after 100 packets by itself. In each larger transfer its peer must then update, too.
        lambda case, _: sum(case.files) > 100_000,
    ),
    _changed(
        "no-early-data",
        _CONNECTION,
        "max_early_data=None if self._is_client else MAX_EARLY_DATA",
        "max_early_data=None",
        _named(Role.SERVER, "zerortt"),
    ),
    _changed(
        "retry-parameter",
        f"{_LIBRARY}/asyncio/server.py",
        "retry_source_connection_id=retry_source_connection_id,",
        "retry_source_connection_id=None,",
        _named(Role.SERVER, "retry"),
    ),
    _changed(
        "no-other-version",
        _CONNECTION,
        "and not self._version_negotiated_incompatible",
        "and False",
        _named(Role.CLIENT, "versionnegotiation"),
    ),
    _changed(
        "no-retransmission",
        f"{_LIBRARY}/quic/stream.py",
        "self._pending.add(start, stop)",
        "pass",
        lambda case, of: "loss" in case.name or (of is Role.SERVER and max(case.files) >= MIB),
    ),
    _changed(
        "no-chacha20",
        "/opt/aioquic/endpoint/settings.py",
        'self.case == \\"chacha20\\"',
        'self.case == \\"never\\"',
        _named(Role.CLIENT, "chacha20"),
    ),
)


def build(fault: Fault) -> str:
    """Build the image with the fault; returns its tag."""
    tag = f"{_PREFIX}{fault.name}"
    text = f"FROM bentpipe/{fault.stack}\n{fault.lines}\n"
    done = subprocess.run(
        ["docker", "build", "--tag", tag, "-"], input=text, text=True, capture_output=True, check=False
    )
    if done.returncode:
        sys.exit(f"{tag} can't be built: {done.stdout}{done.stderr}")
    return tag


def plant(fault: Fault, options: argparse.Namespace, console: Console) -> ChangeReport:
    """Compare the good image with the image that has the fault."""
    return compare_builds(
        BuildOptions(
            base=f"bentpipe/{fault.stack}",
            head=build(fault),
            name=f"planted-{fault.stack}",
            peers=tuple(options.peer.split(",")),
            cases=_cases(fault, options),
            clock=options.clock,
            lanes=options.lanes,
            run=str(options.folder / fault.name),
        ),
        out=console,
        err=console,
    )


def _cases(fault: Fault, options: argparse.Namespace) -> tuple[str, ...]:
    """All cases. With `--others N`: the first `--reached` cases that the fault can affect, and N cases that it can't
    affect, drawn with the fault's name as seed."""
    cases = load_catalog().cases
    reached = [name for name in options.case.split(",") if any(fault.hits(cases[name], role) for role in Role)]
    others = [name for name in options.case.split(",") if name not in reached]
    if options.others is None:
        return (*reached, *others)
    return (*reached[: options.reached], *random.Random(fault.name).sample(others, options.others))


def sort_out(fault: Fault, report: ChangeReport) -> tuple[list[CellPlace], list[CellPlace]]:
    """The cells that are called worse, in two lists: cells that the fault can affect, and false alarms."""
    cases = load_catalog().cases
    worse = [place for place, change in report.changes.items() if change.state is CellState.WORSE]
    reached = [place for place in worse if fault.hits(cases[place.case], place.role)]
    return reached, [place for place in worse if place not in reached]


def main(arguments: Sequence[str] | None = None) -> None:
    """Plant all faults or the named ones, and print the findings."""
    parser = argparse.ArgumentParser(prog="python -m lab.planted", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder for the runs")
    parser.add_argument("--fault", default="", help="names, separated by commas [all]")
    parser.add_argument("--peer", default="quic-go", help="peers, separated by commas")
    parser.add_argument("--case", default=CASES, help="cases, separated by commas")
    parser.add_argument("--others", type=int, metavar="N", help="only N of the cases that a fault can't affect")
    parser.add_argument("--reached", type=int, metavar="N", help="only the first N cases that a fault can affect")
    parser.add_argument("--clock", default="virtual", choices=("virtual", "real"))
    parser.add_argument("--lanes", default="auto")
    options = parser.parse_args(arguments)
    faults: Iterable[Fault] = (*WRAPPED, *CHANGED)
    if options.fault:
        faults = [fault for fault in faults if fault.name in options.fault.split(",")]
    missed, alarms = 0, 0
    with (options.folder / "output.log").open("a") if options.folder.is_dir() else sys.stderr as log:
        for fault in faults:
            report = plant(fault, options, Console(file=log, width=200))
            reached, others = sort_out(fault, report)
            missed, alarms = missed + (not reached), alarms + len(others)
            cells = "; ".join(map(str, reached)) or "NOT FOUND"
            more = f"; FALSE ALARM: {'; '.join(map(str, others))}" if others else ""
            print(f"{fault.stack} {fault.name}: {cells}{more} ({report.jobs} jobs, {report.seconds:.0f} s)", flush=True)
    print(f"{missed} faults were not found, {alarms} cells that the fault can't affect were called worse.")
    sys.exit(1 if missed or alarms else 0)


if __name__ == "__main__":
    main()
