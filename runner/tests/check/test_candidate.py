"""When a cell runs again, and when an image fails a case: the rule, and the probability of a wrong verdict."""

from functools import cache
from pathlib import Path

import pytest

from runner.check.candidate import MOST, Candidate, CheckedCell, as_stack
from runner.check.check import further
from runner.errors import UsageError
from runner.images.setup import Ready
from runner.model.result import Finding, Outcome, Result, Silent
from runner.model.run import REAL, Job
from runner.model.stack import Role
from runner.plan.catalog import load_catalog

_REASON = Finding(code="", requirement="It works.", expected="yes", actual="no")
# S succeeded, F failed, U answered with 127, M missed by the impairment, D disturbed
_CODES = {"M": "impairment-missed", "D": "disturbed"}
_OUTCOMES = {
    "S": Outcome.SUCCEEDED,
    "F": Outcome.FAILED,
    "U": Outcome.UNSUPPORTED,
    "M": Outcome.ERROR,
    "D": Outcome.ERROR,
}


def cell(letters: str, *, random: bool = True) -> CheckedCell:
    results = [
        Result(
            server="a",
            client="b",
            case="c",
            iteration=number,
            outcome=_OUTCOMES[letter],
            findings=() if letter == "S" else (Finding(**{**_REASON.__dict__, "code": _CODES.get(letter, "x")}),),
        )
        for number, letter in enumerate(letters, start=1)
    ]
    return CheckedCell(results=tuple(results), random=random)


@pytest.mark.parametrize(
    ("letters", "further", "outcome"),
    [
        ("S", 0, Outcome.SUCCEEDED),
        ("U", 0, Outcome.UNSUPPORTED),
        ("F", 4, None),
        ("FFF", 0, Outcome.FAILED),
        ("FSS", 2, None),
        ("FSSS", 0, Outcome.SUCCEEDED),
        ("FSSSS", 0, Outcome.SUCCEEDED),
        ("FFS", 2, None),
        ("FFSF", 0, Outcome.FAILED),
        ("FFSS", 1, None),
        ("FFSSS", 0, Outcome.SUCCEEDED),
        ("FFSSF", 0, Outcome.FAILED),
        ("FDS", 3, None),  # a disturbed iteration does not stop the other iterations
        ("FSMDD", 0, Outcome.ERROR),
        ("FSSMMM", 0, Outcome.SUCCEEDED),
        ("MS", 0, Outcome.SUCCEEDED),
        ("MF", 4, None),
    ],
)
def test_a_random_case_that_failed_runs_until_it_is_decided(
    letters: str, further: int, outcome: Outcome | None
) -> None:
    judged_cell = cell(letters)
    assert judged_cell.further == further
    if outcome is not None:
        assert judged_cell.outcome is outcome
        assert judged_cell.tolerated == (outcome is Outcome.SUCCEEDED and "F" in letters)


@pytest.mark.parametrize("random", [True, False])
@pytest.mark.parametrize(
    ("letters", "further", "outcome"),
    [
        ("M", 1, Outcome.ERROR),
        ("MM", 1, Outcome.ERROR),
        ("MMM", 0, Outcome.ERROR),
        ("MMS", 0, Outcome.SUCCEEDED),
        ("D", 0, Outcome.ERROR),  # the loop has already made three attempts
        ("MD", 0, Outcome.ERROR),
    ],
)
def test_a_case_that_the_impairment_missed_runs_again_a_few_times(
    letters: str, further: int, outcome: Outcome, *, random: bool
) -> None:
    judged_cell = cell(letters, random=random)
    assert (judged_cell.further, judged_cell.outcome) == (further, outcome)


def test_what_no_seed_changes_fails_at_once() -> None:
    judged_cell = cell("F", random=False)
    assert (judged_cell.further, judged_cell.outcome) == (0, Outcome.FAILED)


@cache
def held(letters: str, rate: float) -> float:
    """The probability that a case fails in the end, when its jobs fail at this rate and it began with these results."""
    further = cell(letters).further if letters else 1
    if not further:
        return float(cell(letters).outcome is Outcome.FAILED)
    ends = [letters]
    for _ in range(further):
        ends = [end + one for end in ends for one in "SF"]
    shares = ((end[len(letters) :].count("F"), end) for end in ends)
    return sum(rate**bad * (1 - rate) ** (further - bad) * held(end, rate) for bad, end in shares)


def test_chance_seldom_turns_a_good_image_red_and_seldom_spares_a_bad_one() -> None:
    assert held("", 0.1) < 1 / 190
    assert 1 - (1 - held("", 5 / 64)) ** 8 < 0.03  # probability of a wrong verdict in at least one of 8 such cells
    assert held("", 0.9) > 0.89
    assert held("", 1.0) == 1.0


@pytest.mark.parametrize("rest", ["FFFF", "SSSS", "FSFS"])
def test_one_more_round_settles_what_nothing_disturbs(rest: str) -> None:
    assert cell("F").further == len(rest)
    assert cell("F" + rest).further == 0


def test_the_jobs_of_a_candidate_follow_from_its_results(tmp_path: Path) -> None:
    candidate = Candidate.create(
        tmp_path / "run",
        as_stack("mine", "example/mine", None),
        catalog=load_catalog(),
        peers=("quinn", "quic-go"),
        cases=("handshake", "http3", "handshakeloss"),
        most=1,
        facts=None,
        clock=REAL,
        seed=1,
        images=Ready(ids={}, digests={}),
        observer=Silent(),
    )
    assert {job.ends for job in candidate.folder.run.order} == {"mine → quinn", "quinn → mine"}
    candidate.limit({Role.CLIENT: ("http3",)})
    jobs = candidate.jobs(("http3", "handshakeloss"), most=2)
    assert {(job.case, job.server) for job in jobs} == {("http3", "quinn"), ("http3", "quic-go")}
    lossy = Job(server="quinn", client="mine", case="handshakeloss", iteration=1)
    candidate.results = {jobs[0]: Result.of(jobs[0], Outcome.FAILED), lossy: Result.of(lossy, Outcome.FAILED, _REASON)}
    assert candidate.jobs(("http3",), most=2) == jobs[1:]
    assert [(job.case, job.iteration) for job in further(candidate)] == [
        ("handshakeloss", number) for number in range(2, MOST + 1)
    ]
    with pytest.raises(UsageError, match="No job is left"):
        Candidate.create(
            tmp_path / "none",
            as_stack("mine", "example/mine", None, roles=()),
            catalog=load_catalog(),
            peers=("quinn",),
            cases=("handshake",),
            most=1,
            facts=None,
            clock=REAL,
            images=Ready(ids={}, digests={}),
            observer=Silent(),
        )
