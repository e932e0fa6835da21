"""Removing what runners left behind: of the dead at the start, one's own at the end."""

from collections.abc import Callable, Mapping

from runner.deploy.containers import LABEL_OWNER, Engine
from runner.deploy.owner import Owner
from runner.errors import LaneError

Belongs = Callable[[Mapping[str, str]], bool]


def sweep(engine: Engine) -> int:
    """Remove containers and volumes of runners of this machine that are dead. Returns how many there were."""

    def is_orphan(labels: Mapping[str, str]) -> bool:
        owner = Owner.parse(labels.get(LABEL_OWNER, ""))
        return owner is not None and owner.is_dead()

    return _remove(engine, is_orphan)


def remove_own(engine: Engine, labels: Mapping[str, str]) -> int:
    """Remove every container and volume that bears exactly these labels of ours. Returns how many there were."""
    return _remove(engine, lambda found: all(found.get(name) == value for name, value in labels.items()))


def _remove(engine: Engine, belongs: Belongs) -> int:
    """Containers first: a volume in use can't be removed. All are tried before the first failure is raised."""
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
    if failures:
        raise failures[0]
    return removed
