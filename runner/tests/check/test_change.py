"""When a cell of two builds runs again, when a difference counts as a change, and how often chance alone causes
this."""

import itertools
from functools import cache
from math import comb

import pytest

from runner.check.candidate import CellPlace
from runner.check.change import CellState, Change, confirmed_by_peers
from runner.model.result import Finding, Outcome, Result, Sample
from runner.model.stack import Role
from runner.plan.jobs import FIRST_CASE_FAILED
from testcases.hits import MISSED

# S succeeded, F failed, X failed for another reason, U answered with 127, M missed by the impairment, D disturbed,
# G not run, because the handshake had failed; P failed because of its peer, O because of itself
_LETTERS = {
    "S": (Outcome.SUCCEEDED, ""),
    "F": (Outcome.FAILED, "files-differ"),
    "X": (Outcome.FAILED, "timeout"),
    "U": (Outcome.UNSUPPORTED, ""),
    "M": (Outcome.ERROR, MISSED),
    "D": (Outcome.ERROR, "disturbed"),
    "P": (Outcome.FAILED, "hello-changed"),
    "O": (Outcome.FAILED, "no-retry"),
    "G": (Outcome.SKIPPED, FIRST_CASE_FAILED),
}


def results(letters: str) -> tuple[Result, ...]:
    collected = []
    for number, letter in enumerate(letters, start=1):
        outcome, code = _LETTERS[letter]
        role = {"P": "client", "O": "server"}.get(letter, "")
        finding = Finding(code=code, requirement="It works.", expected="yes", actual="no", role=role)
        findings = (finding,) if code else ()
        collected.append(Result(server="a", client="b", case="c", iteration=number, outcome=outcome, findings=findings))
    return tuple(collected)


def change(base: str, head: str, peer: str = "b", *, confirmed: bool = False) -> Change:
    return Change(place=CellPlace("c", Role.SERVER, peer), base=results(base), head=results(head), confirmed=confirmed)


def measured(base: list[float], head: list[float], *, questions: int = 1) -> Change:
    def side(times: list[float]) -> tuple[Result, ...]:
        return tuple(
            Result(
                server="a",
                client="b",
                case="goodput",
                iteration=number,
                outcome=Outcome.SUCCEEDED,
                sample=Sample(file_size=1, ttlb=time),
            )
            for number, time in enumerate(times, start=1)
        )

    place = CellPlace("goodput", Role.SERVER, "b")
    return Change(place=place, base=side(base), head=side(head), measured=True, questions=questions)


@pytest.mark.parametrize(
    ("base", "head", "further", "state"),
    [
        ("S", "S", 0, CellState.SAME),
        ("F", "F", 0, CellState.SAME),
        ("U", "U", 0, CellState.SAME),
        ("F", "X", 0, CellState.OTHER),
        ("U", "F", 0, CellState.OTHER),
        ("S", "F", 4, CellState.UNCONFIRMED),
        ("SSSSS", "FFFFF", 0, CellState.WORSE),
        ("SSSSS", "UUUUU", 0, CellState.WORSE),  # the new build no longer supports the case
        ("FFFFF", "SSSSS", 0, CellState.BETTER),
        ("SSSSS", "FSSSS", 0, CellState.UNCONFIRMED),
        ("SSSSS", "FFSSF", 5, CellState.UNCONFIRMED),
        ("SSSSSSSSSS", "FFSSFFFFFS", 0, CellState.WORSE),
        ("SSSSSSSSSS", "FFSSFFFSSS", 0, CellState.UNCONFIRMED),
        ("M", "M", 1, CellState.OPEN),
        ("MMM", "MMM", 0, CellState.OPEN),
        ("S", "D", 0, CellState.OPEN),
        ("PPPPP", "OOOOO", 0, CellState.WORSE),  # a case that failed before because of the peer can't hide a new fault
        ("P", "P", 0, CellState.SAME),
        ("O", "P", 0, CellState.OTHER),
        ("SSSSS", "PPPPP", 0, CellState.WORSE),  # the peer fails only with the changed build
        ("S", "G", 0, CellState.OPEN),  # the handshake is reported as worse, not this case
        ("SDS", "FFF", 3, CellState.UNCONFIRMED),  # another iteration replaces the disturbed iteration
    ],
)
def test_a_difference_counts_once_further_seeds_confirm_it(
    base: str, head: str, further: int, state: CellState
) -> None:
    assert (change(base, head).further, change(base, head).state) == (further, state)


@pytest.mark.parametrize(
    ("base", "head", "questions", "further", "state"),
    [
        ([9.0], [9.5], 1, 0, CellState.SAME),  # the difference is less than 10 %
        ([9.0], [11.0], 1, 4, CellState.UNCONFIRMED),
        ([9.0, 9.1, 9.2, 9.3, 9.4], [11.0, 11.1, 11.2, 11.3, 11.4], 1, 5, CellState.UNCONFIRMED),
        ([9.0 + i / 10 for i in range(10)], [11.0 + i / 10 for i in range(10)], 68, 0, CellState.WORSE),
        ([11.0 + i / 10 for i in range(10)], [9.0 + i / 10 for i in range(10)], 68, 0, CellState.BETTER),
        ([9.0 + i for i in range(10)], [11.0 + i for i in range(10)], 68, 0, CellState.UNCONFIRMED),
    ],
)
def test_a_delivery_time_counts_by_its_size_and_its_scatter(
    base: list[float], head: list[float], questions: int, further: int, state: CellState
) -> None:
    item = measured(base, head, questions=questions)
    assert (item.further, item.state) == (further, state)


def group(*cells: tuple[str, str]) -> list[str]:
    changes = {one.place: one for one in (change(*cell, f"peer{n}") for n, cell in enumerate(cells))}
    return sorted(place.peer for place in confirmed_by_peers(changes))


def test_many_peers_confirm_at_once_what_they_show_for_the_same_reason() -> None:
    assert len(group(*[("S", "F")] * 7)) == 7
    assert not group(*[("S", "F")] * 5)
    # The last cell fails for another reason, so it must run again.
    assert group(*[("S", "F")] * 9, ("S", "X")) == [f"peer{n}" for n in range(9)]
    # Each build fails with half of the peers.
    assert not group(*[("S", "F")] * 5, *[("F", "S")] * 5)


# --- how often chance is called worse -----------------------------------------------------------------------------


@cache
def _after(base: str, head: str) -> tuple[int, CellState]:
    item = change(base, head)
    return item.further, item.state


def called(rate: float, head_rate: float, wanted: CellState) -> float:
    """The probability that a cell whose builds fail at these rates ends in the state `wanted`. It is computed
    exactly."""

    def walk(base: tuple[int, int], head: tuple[int, int]) -> float:
        # The rule uses only counts, so the order of the letters doesn't matter.
        further, state = _after("S" * base[0] + "F" * base[1], "S" * head[0] + "F" * head[1])
        if not further:
            return float(state is wanted)
        total = 0.0
        for lost, lost_head in itertools.product(range(further + 1), repeat=2):
            odds = comb(further, lost) * rate**lost * (1 - rate) ** (further - lost)
            odds *= comb(further, lost_head) * head_rate**lost_head * (1 - head_rate) ** (further - lost_head)
            if odds:
                after = (base[0] + further - lost, base[1] + lost), (head[0] + further - lost_head, head[1] + lost_head)
                total += odds * walk(*after)
        return total

    starts = itertools.product((0, 1), repeat=2)
    return sum(
        (rate if lost else 1 - rate)
        * (head_rate if lost_head else 1 - head_rate)
        * walk((1 - lost, lost), (1 - lost_head, lost_head))
        for lost, lost_head in starts
    )


def test_chance_alone_is_hardly_ever_called_worse() -> None:
    worst = max(called(rate / 20, rate / 20, CellState.WORSE) for rate in range(21))
    assert worst < 0.002
    assert called(0.1, 0.1, CellState.WORSE) < 1e-5


def test_a_fault_that_always_shows_is_always_found_and_one_that_mostly_shows_mostly() -> None:
    assert called(0.0, 1.0, CellState.WORSE) == 1.0
    assert called(0.0, 0.9, CellState.WORSE) > 0.85
    assert called(0.1, 1.0, CellState.WORSE) > 0.85
