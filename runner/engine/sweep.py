"""Removes leftovers of runners: of dead runners at the start, of this runner at the end."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from runner.engine.containers import LABEL_LANES, LABEL_OWNER, Engine
from runner.engine.owner import Owner
from runner.errors import LaneError

Belongs = Callable[[Mapping[str, str]], bool]
_AT_ONCE = 8  # objects that are removed at the same time: dockerd can take 12 s for a container that does not end


def sweep(engine: Engine) -> int:
    """Remove containers and volumes of dead runners of this machine. Returns their number.

    When a runner has a running watchdog, its containers and volumes are left to the watchdog: it knows whether the
    runner lives, even on a copy of this machine. Objects that can't be removed, for example because another runner is
    removing them, are left to the next sweep.
    """
    watched = engine.watched()

    def is_orphan(labels: Mapping[str, str]) -> bool:
        owner = Owner.parse(labels.get(LABEL_OWNER, ""))
        return owner is not None and owner.is_dead() and labels.get(LABEL_LANES) not in watched

    removed, _ = _remove(engine, is_orphan)
    return removed


def remove_own(engine: Engine, labels: Mapping[str, str]) -> int:
    """Remove every container and volume with these labels. Returns their number. Raises LaneError when one can't be
    removed."""
    removed, failures = _remove(engine, lambda made: all(made.get(name) == value for name, value in labels.items()))
    if failures:
        raise failures[0]
    return removed


def _remove(engine: Engine, belongs: Belongs) -> tuple[int, list[LaneError]]:
    """Remove containers, then volumes, because a volume in use can't be removed. Returns the number of removed objects,
    and the failures."""
    outcomes: list[LaneError | None] = []
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="removal") as pool:
        for listed, remove in (
            (engine.labelled_containers, engine.remove),
            (engine.labelled_volumes, engine.remove_volume),
        ):
            names = [name for name, labels in listed() if belongs(labels)]
            outcomes += pool.map(partial(_outcome, remove), names)
    failures = [outcome for outcome in outcomes if outcome is not None]
    return len(outcomes) - len(failures), failures


def _outcome(remove: Callable[[str], object], name: str) -> LaneError | None:
    """Remove one object. Returns its failure."""
    try:
        remove(name)
    except LaneError as error:
        return error
    return None
