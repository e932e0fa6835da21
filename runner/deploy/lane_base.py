"""What every lane is made of: containers and volumes that go with it, and holders whose namespaces others join."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor

from runner.deploy.containers import ContainerSpec, Engine
from runner.deploy.supervised import Bell, Supervised
from runner.errors import LaneError


def together(pool: Executor, *calls: Callable[[], object]) -> None:
    """Run calls at once, wait for all of them, raise what the first of them raised."""
    futures = [pool.submit(call) for call in calls]
    failures = [failure for future in futures if (failure := future.exception()) is not None]
    if failures:
        raise failures[0]


class LaneBase:
    """Prepared, used by one thread for one job, and removed by `discard` whatever happened."""

    def __init__(self, engine: Engine, pool: Executor, bell: Bell, *, name: str) -> None:
        self.name = name
        self.engine = engine
        self.pool = pool
        self.bell = bell
        self._containers: list[str] = []
        self._holders: dict[str, str] = {}
        self._preparing = threading.Lock()
        self._prepared = False
        self._failure: LaneError | None = None

    def prepare(self, plumber: str) -> None:
        """Start the holders and wire their namespaces, unless that was done in the background. Raises LaneError."""
        with self._preparing:
            if self._failure is not None:
                raise self._failure
            if self._prepared:
                return
            try:
                self._hold_all()
                self._wire(plumber)
                self._prepared = True
            except LaneError as error:
                self._failure = error
                raise

    def _hold_all(self) -> None:
        """Start all holders."""
        raise NotImplementedError

    def _script(self, pids: dict[str, int]) -> str:
        """The wiring, from the process ids of the holders by role."""
        raise NotImplementedError

    def _volumes(self) -> list[str]:
        """The names of all volumes."""
        raise NotImplementedError

    def hold(self, role: str, spec: ContainerSpec) -> str:
        """Make the holder of `role`, not started. Returns its id."""
        self._holders[role] = self.create(spec)
        return self._holders[role]

    def _wire(self, plumber: str) -> None:
        """Connect the namespaces of the holders, through the plumber."""
        pids = {role: self.engine.state(holder).pid for role, holder in self._holders.items()}
        if not all(pids.values()):
            raise LaneError("holder-died", "A holder of the lane ended at once: look at the engine's log.")
        exit_code, output = self.engine.execute(plumber, ["sh", "-c", self._script(pids)])
        if exit_code != 0:
            raise LaneError("not-wired", f"The lane could not be wired: {output.strip() or f'exit code {exit_code}'}")

    def create(self, spec: ContainerSpec) -> str:
        """Make a container that `discard` will remove. Returns its id."""
        container = self.engine.create(f"{self.name}-{spec.role}", spec)
        self._containers.append(container)
        return container

    def supervise(self, container: str, *, output_limit: int) -> Supervised:
        """Watch a container, from its start on, with this lane's bell."""
        return Supervised(self.engine, container, self.bell, output_limit=output_limit)

    def namespace(self, role: str) -> str:
        """The network mode of a container that joins the holder of `role`."""
        return f"container:{self._holders[role]}"

    def execute(self, role: str, command: list[str]) -> tuple[int, str]:
        """Run a command in the holder of `role`. Returns exit code and what it printed."""
        return self.engine.execute(self._holders[role], command)

    def archive(self, role: str, path: str) -> Iterator[bytes]:
        """A folder of the holder of `role` as tar: its volumes outlast the endpoint. Raises LaneError without it."""
        if role not in self._holders:
            raise LaneError("no-lane", f"There is no holder of the {role}.")
        return self.engine.archive(self._holders[role], path)

    def discard(self) -> None:
        """Remove every container and volume of the lane. Raises LaneError when the engine refuses one."""
        with self._preparing:
            kept = set(self._holders.values())
            joined = [container for container in self._containers if container not in kept]
            for group in (joined, list(kept)):
                removals = (lambda container=container: self.engine.remove(container) for container in group)
                together(self.pool, *removals)
            for name in self._volumes():
                self.engine.remove_volume(name)
