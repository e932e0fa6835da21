"""Mutates flights, and keeps those that make an endpoint crash, hang, grow, or answer unlike most stacks
(docs/hostile.md).

    .venv/bin/python -m runner.check.fuzzer quinn,quic-go,aioquic --role server --flights 200 --seed 7

Guided by states and answers: a mutant after which a stack answers as it did to no flight of this state joins the
flights that are mutated. The same seed and the same answers give the same mutants. A finding is told when it repeats,
and when the flight of the list that was mutated does not show it.
"""

import argparse
import ast
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from rich.console import Console

from runner.check.flight_verdicts import ERROR, INAPPLICABLE, UNSUPPORTED, FlightResult
from runner.check.flights import LIST, load_rows, parse_flight
from runner.check.meeting import meet_all
from runner.errors import UsageError
from runner.model.run import REAL, VIRTUAL
from runner.model.stack import Role
from runner.plan.choice import split
from runner.plan.options import StackOptions
from runner.units import format_count

Row = dict[str, Any]
Answers = Mapping[str, Mapping[str, FlightResult]]  # stack → flight → result
Ask = Callable[[Mapping[str, Row]], Answers]

_ROUND = 80  # mutants of one round; each stack meets them in one job
_MOST_DATAGRAMS = 6
_MOST_SHRINKING = 5  # rounds
_CLOSES, _CONTINUES, _STREAM, _SILENT = "closes", "continues", "stream error", "silence"
_CRASH, _HANG, _GROWTH = "crash", "hang", "growth"
_ALWAYS_TOLD = {_CRASH: "crash", _HANG: "hang", _GROWTH: "use much memory or CPU time"}  # whatever other stacks do
_RIGHT = {_CLOSES: ["any-error"], _CONTINUES: ["continues"], _STREAM: ["any-stream"], _SILENT: ["silent"]}
"""What most stacks did → the right answers of a row."""
_STATES = ("initial", "handshake", "complete", "confirmed", "answered")
_EDGES = (0, 1, 63, 64, 16383, 16384, 2**30 - 1, 2**30, 2**60, 2**60 + 1, 2**62 - 1)  # sizes of integers, and limits
_ALIKE = (
    {"max_data", "data_blocked", "max_streams_bidi", "max_streams_uni", "streams_blocked_bidi", "streams_blocked_uni"}
    | {"retire_connection_id"},
    {"max_stream_data", "stream_data_blocked", "stop_sending"},
    {"path_challenge", "path_response", "new_token", "datagram"},
    {"ping", "handshake_done"},
    {"initial", "handshake", "one_rtt"},
)
"""Words with the same arguments."""
_NOT_SENT = {"parent", "level", "then", "rule", "h3spec", "needs", "knows"}  # keys that a mutant does not keep
_CHANGES = ("parameters", "messages", "control")  # keys that change honest packets
_SIZES = {"bytes", "padding", "random", "range", "wait", "pieces"}  # integers in them are amounts, which stay bounded


@dataclass(frozen=True)
class Found:
    """A flight after which a stack crashed, hung, grew, or answered unlike most others."""

    stack: str
    row: Row
    answer: str
    others: str  # what most stacks did; empty for a crash, a hang or growth
    seen: str

    @property
    def kind(self) -> tuple[str, ...]:
        """Two findings of the same kind are told once."""
        return self.stack, self.answer, self.others, self.row["parent"]


def answer_of(result: FlightResult | None) -> str:
    """One word for the answer of the endpoint; empty without a known answer."""
    if result is None or result.verdict in (ERROR, INAPPLICABLE, UNSUPPORTED):
        return ""
    if "the client hung" in result.seen or (result.crashed and "it hangs" in result.why):
        return _HANG
    if result.crashed:
        return _CRASH
    if result.usage is not None and result.usage.excess:
        return _GROWTH
    if result.code:
        return _CLOSES
    if "stream error" in result.seen:
        return _STREAM
    return _CONTINUES if result.seen.startswith("the connection continued") else _SILENT


def fuzz(
    rows: Mapping[str, Row], ask: Ask, role: Role, *, seed: int, most: int, tally: Counter[str] | None = None
) -> Iterator[Found]:
    """Mutate `rows` until `most` mutants were sent. Yields each kind of finding once, as small as it can be. `tally`
    gets the number of mutants that a stack answered, and of findings that are not told."""
    rng, tally = Random(seed), Counter() if tally is None else tally
    # Rows with session tickets are not mutated: tickets are few.
    corpus = [{**row, "parent": name} for name, row in rows.items() if "resumes" not in row and any(_places(row))]
    known, kinds = set[tuple[str, ...]](), set[tuple[str, ...]]()
    for first in range(0, most, _ROUND):
        mutants = {f"fuzz-{number}": mutate(rng, corpus) for number in range(first, min(first + _ROUND, most))}
        answers = ask({name: _asking(row, role) for name, row in mutants.items()})
        new = []
        for name, row in mutants.items():
            signs = {
                (stack, row.get("when", "confirmed"), row.get("case", ""), result.code or answer_of(result))
                for stack, results in answers.items()
                if (result := results.get(name)) is not None and answer_of(result)
            }
            tally["answered"] += bool(signs)
            if not signs <= known:
                known |= signs
                corpus.append(row)
            for found in _findings(name, row, answers):
                if found.kind not in kinds:
                    kinds.add(found.kind)
                    new.append(found)
        yield from _shrink(new, rows, ask, role, tally)


def _asking(row: Row, role: Role) -> Row:
    """A row that the peer and the judge understand: any answer is told apart, none is a failure."""
    kept = {key: value for key, value in row.items() if key not in _NOT_SENT}
    return {**kept, "asks": role.value, "level": "MAY", "then": ["any-error"]}


def _findings(name: str, row: Row, answers: Answers) -> Iterator[Found]:
    """The findings in the answers to a flight."""
    said = {stack: answer for stack, results in answers.items() if (answer := answer_of(results.get(name)))}
    usual, count = Counter(said.values()).most_common(1)[0] if said else ("", 0)
    for stack, answer in said.items():
        seen = answers[stack][name].seen
        if answer in _ALWAYS_TOLD:
            yield Found(stack, row, answer, "", seen)
        elif answer != usual and count >= 2 and 2 * count > len(said):
            yield Found(stack, row, answer, usual, seen)


def _shrink(found: list[Found], rows: Mapping[str, Row], ask: Ask, role: Role, tally: Counter[str]) -> Iterator[Found]:
    """The smallest flights that show the findings: parts are left out as long as a finding stays. Leaves out findings
    that do not repeat, and those that the flight of the list shows, too."""
    open_, small = dict(enumerate(found)), dict(enumerate(found))
    for shrinking in range(_MOST_SHRINKING):
        asked = {
            f"fuzz-{number}-smaller-{part}": (number, row)
            for number, each in open_.items()
            for part, row in enumerate(_smaller(each.row))
        }
        if not shrinking:
            asked |= {f"fuzz-{number}-again": (number, each.row) for number, each in open_.items()}
            asked |= {
                f"fuzz-{number}-parent": (number, {**rows[parent], "parent": parent})
                for number, each in open_.items()
                if (parent := each.row["parent"])
            }
        if not asked:
            break
        answers = ask({name: _asking(row, role) for name, (_, row) in asked.items()})
        better, seen = dict[int, Found](), set[str]()
        for name, (number, row) in asked.items():
            for each in _findings(name, row, answers):
                if each.kind == open_[number].kind:
                    seen.add(name)
                    if not name.endswith(("-again", "-parent")):
                        better.setdefault(number, each)
        for number in open_ if not shrinking else ():
            known, again = f"fuzz-{number}-parent" in seen, f"fuzz-{number}-again" in seen
            if known or not (again or number in better):
                tally["known" if known else "not repeated"] += 1
                small.pop(number)
                better.pop(number, None)
        open_ = better
        small |= better
    yield from small.values()


def _smaller(row: Row) -> Iterator[Row]:
    """The row with less in it, the smallest first: with one datagram, without one, without a change of honest packets,
    without one frame, with a tenth of a flood."""
    send = row.get("send", [])
    for number in range(len(send) if len(send) > 2 else 0):
        yield {**row, "send": [send[number]]}
    for number in range(len(send) if len(send) > 1 else 0):
        yield {**row, "send": send[:number] + send[number + 1 :]}
    for key in _CHANGES:
        if key in row and (send or sum(each in row for each in _CHANGES) > 1):
            yield {name: value for name, value in row.items() if name != key}
    for number, text in enumerate(send):
        for node in ast.walk(ast.parse(text, mode="eval")):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
                for part in (node.left, node.right):
                    yield _with(row, ("send", number), _replaced(text, node, part))
    if row.get("times", 0) >= 10:
        yield {**row, "times": row["times"] // 10}


def _places(row: Row) -> Iterator[tuple[str, Any]]:
    """The places of the row's expressions: a key, and an index or name in its value (None: the value itself)."""
    yield from (("send", number) for number in range(len(row.get("send", ()))))
    for key in _CHANGES:
        if isinstance(row.get(key), dict):
            yield from ((key, name) for name in row[key])
        elif key in row:
            yield key, None


def _with(row: Row, place: tuple[str, Any], text: str) -> Row:
    """The row with another expression at a place."""
    key, at = place
    if at is None:
        return {**row, key: text}
    parts = row[key].copy()
    parts[at] = text
    return {**row, key: parts}


def mutate(rng: Random, corpus: Sequence[Row]) -> Row:
    """One to three changes of a flight: of a value, a word, a state, the order and number of datagrams."""
    parent = rng.choice(corpus)
    row = dict(parent)
    for _ in range(rng.randint(1, 3)):
        send, change = list(row.get("send", ())), rng.random()
        if change < 0.6 or not send:
            place = rng.choice([*_places(row)])
            text = row[place[0]] if place[1] is None else row[place[0]][place[1]]
            row = _with(row, place, _changed(rng, text))
            continue
        if change < 0.7:
            at = rng.randrange(len(send))
            send.insert(at, send[at])
        elif change < 0.8:
            rng.shuffle(send)
        elif change < 0.9:
            other = rng.choice([each for each in corpus if each.get("case") == row.get("case") and "send" in each])
            send += other["send"]
        else:
            row["when"] = rng.choice(_STATES)
        row["send"] = send[:_MOST_DATAGRAMS]
    return row


def _changed(rng: Random, text: str) -> str:
    """An expression with one other integer, string of bytes or word."""
    tree = ast.parse(text, mode="eval")
    amounts = {
        id(inner)
        for node in ast.walk(tree)
        if (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _SIZES)
        or (isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Add | ast.Sub))
        for inner in ast.walk(node)
    }
    nodes = [node for node in ast.walk(tree) if id(node) not in amounts and _variants(rng, node)]
    if not nodes:
        return text
    node = rng.choice(nodes)
    return _replaced(text, node, rng.choice(_variants(rng, node)))


def _variants(rng: Random, node: ast.AST) -> list[ast.expr]:
    """The nodes that can replace a node."""
    if isinstance(node, ast.Name):
        return [ast.Name(other) for group in _ALIKE if node.id in group for other in sorted(group - {node.id})]
    value = node.value if isinstance(node, ast.Constant) else None
    if isinstance(value, int) and not isinstance(value, bool):
        near = {value - 1, value + 1, *_EDGES} - {value}
        return [ast.Constant(each) for each in sorted(near) if 0 <= each < 2**62]
    if isinstance(value, bytes):
        cut, bit = rng.randrange(len(value) + 1), rng.randrange(8)
        flipped = bytes(byte ^ (1 << bit) * (at == cut) for at, byte in enumerate(value))
        return [ast.Constant(each) for each in (b"", value[:cut], value + value, flipped)]
    return []


def _replaced(text: str, node: ast.AST, other: ast.expr) -> str:
    """The expression with another node in the place of this one, which was found in the same text."""
    start, end = (getattr(node, name) for name in ("col_offset", "end_col_offset"))
    data = text.encode()
    new = ast.unparse(other)
    new = f"({new})" if isinstance(other, ast.BinOp) else new
    return (data[:start] + new.encode() + data[end:]).decode()


def row_text(found: Found, name: str) -> str:
    """A row for flights.toml."""
    row = {key: value for key, value in found.row.items() if key not in _NOT_SENT}
    most = f"do as most stacks: {found.others}" if found.others else f"not {_ALWAYS_TOLD[found.answer]}"
    right = _RIGHT.get(found.others) or [answer for each in _RIGHT.values() for answer in each] + ["refused"]
    row |= {
        "must": f"An endpoint should {most} (found by mutating {found.row['parent']}).",
        "level": "SHOULD",
        "then": right,
    }
    return "\n".join(["", f'["{name}"]', *(f"{key} = {_toml(value)}" for key, value in row.items()), ""])


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(each)}" for key, each in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)


def main() -> None:
    """Fuzz the stacks that the command line names, and print the findings."""
    parser = argparse.ArgumentParser(prog="python -m runner.check.fuzzer", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("stacks", help="names or images, divided by commas; three or more are needed for a majority")
    parser.add_argument("--role", choices=[role.value for role in Role], default="server", help="the role under test")
    parser.add_argument("--flights", type=int, default=200, help="the number of mutants [200]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clock", choices=[REAL, VIRTUAL], default=REAL, help="virtual: the load does not matter")
    parser.add_argument("--run", default="fuzz", help="how folders in logs/checks begin [fuzz]")
    parser.add_argument("--add", action="store_true", help="add each finding to flights.toml as a row")
    options = parser.parse_args()
    role = Role(options.role)
    out, err, rounds, tally = Console(), Console(stderr=True), iter(range(10_000)), Counter[str]()

    def ask(rows: Mapping[str, Row]) -> Answers:
        chosen = StackOptions(run=f"{options.run}-{options.seed}-{next(rounds)}", clock=options.clock, yes=True)
        tested = dict.fromkeys(split([options.stacks]), (role,))
        met = meet_all(chosen, tested, rows=rows, out=err, err=err)
        return {meeting.stack.name: {result.flight: result for result in meeting.results} for meeting in met}

    try:
        rows = {name: row for name, row in load_rows().items() if role in parse_flight(name, row).roles}
        number = 0
        told = fuzz(rows, ask, role, seed=options.seed, most=options.flights, tally=tally)
        for number, found in enumerate(told, start=1):
            others = f"; most: {found.others}" if found.others else ""
            out.print(f"{found.stack}: {found.answer}{others} ({found.seen})", markup=False, soft_wrap=True)
            text = row_text(found, f"fuzz-{found.row['parent']}-{options.seed}-{number}")
            out.print(text, markup=False, soft_wrap=True)
            if options.add:
                with LIST.open("a") as file:
                    file.write(text)
        out.print(
            f"{format_count(options.flights, 'mutant')}, {tally['answered']} with an answer, "
            f"{format_count(number, 'finding')}; left out: "
            f"{tally['known']} that the list shows, {tally['not repeated']} that did not repeat",
            markup=False,
            soft_wrap=True,
        )
    except UsageError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
