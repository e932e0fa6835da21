"""Removes what runners left behind: dead runners at the start, this runner at the end."""

from collections.abc import Callable, Mapping

from runner.engine.containers import LABEL_LANES, LABEL_OWNER, Engine
from runner.engine.owner import Owner
from runner.errors import LaneError

Belongs = Callable[[Mapping[str, str]], bool]


def sweep(engine: Engine) -> int:
    """Remove containers and volumes of runners of this machine that are dead. Returns how many were removed.

    Those over which a watchdog still runs are left to it: it knows better whether the runner lives, which may be on a
    copy of this machine. What can't be removed, perhaps because another runner sweeps too, is left to the next sweep.
    """
    watched = engine.watched()

    def is_orphan(labels: Mapping[str, str]) -> bool:
        owner = Owner.parse(labels.get(LABEL_OWNER, ""))
        return owner is not None and owner.is_dead() and labels.get(LABEL_LANES) not in watched

    removed, _ = _remove(engine, is_orphan)
    return removed


def remove_own(engine: Engine, labels: Mapping[str, str]) -> int:
    """Remove every container and volume with these labels. Returns their number; raises LaneError when one is left."""
    removed, failures = _remove(engine, lambda found: all(found.get(name) == value for name, value in labels.items()))
    if failures:
        raise failures[0]
    return removed


def _remove(engine: Engine, belongs: Belongs) -> tuple[int, list[LaneError]]:
    """Containers first: a volume in use can't be removed. Returns how many were removed, and what failed."""
    failures: list[LaneError] = []
    removed = 0
    for found, remove in (
        (engine.labelled_containers, engine.remove),
        (engine.labelled_volumes, engine.remove_volume),
    ):
        for name, labels in found():
            if not belongs(labels):
                continue
            try:
                remove(name)
                removed += 1
            except LaneError as error:
                failures.append(error)
    return removed, failures
