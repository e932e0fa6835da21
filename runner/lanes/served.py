"""The volumes that jobs of a run read: a /www for each set of files, a /certs for each chain length, /keys, and
/etc/hosts for each role."""

import hashlib
import itertools
import threading
from collections.abc import Callable, Mapping

from runner.collect import Expected
from runner.engine.containers import ContainerSpec, Engine, Volume
from runner.inputs.inputs import ServedFile, certificates, path_keys
from runner.lanes.addresses import BESIDE_HOSTS, CLIENT_HOSTS, SERVER_HOSTS, hosts_file
from runner.lanes.holders import TOOLS
from runner.model.beside import BesideRole
from runner.model.topology import CLIENT, SERVER

_HOSTS = {
    **{CLIENT: CLIENT_HOSTS, SERVER: SERVER_HOSTS},
    **{role.value: BESIDE_HOSTS for role in BesideRole},
}
_BOXES = "boxes"  # the file of boxes, which only know themselves


def _hosts_files() -> dict[str, bytes]:
    return {role: hosts_file(names).encode() for role, names in {**_HOSTS, _BOXES: ()}.items()}


class Served:
    """Makes each volume once, when it is first needed. `remove_own` (runner/engine/sweep.py) removes the volumes at the
    end of the run. Thread-safe."""

    def __init__(self, engine: Engine, prefix: str) -> None:
        self._engine = engine
        self._prefix = prefix
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._www: dict[tuple[ServedFile, ...], str] = {}
        self._certs: dict[int, str] = {}
        self._keys = ""  # name of the volume; empty: not made yet
        self._hosts = ""  # name of the volume, as for `_keys`
        self._expected: dict[ServedFile, Expected] = {}

    def www(self, files: tuple[ServedFile, ...]) -> Volume:
        """/www with exactly `files`."""
        with self._lock:
            if files not in self._www:
                self._www[files] = self._fill("www", lambda: self._contents(files))
            return Volume(name=self._www[files], path="/www", read_only=True)

    def certs(self, chain_length: int) -> Volume:
        """/certs with a leaf certificate and `chain_length` - 1 intermediate certificates."""
        with self._lock:
            if chain_length not in self._certs:
                self._certs[chain_length] = self._fill("certs", lambda: certificates(chain_length=chain_length).files())
            return Volume(name=self._certs[chain_length], path="/certs", read_only=True)

    def path_keys(self) -> Volume:
        """/keys of both boxes of a middlebox."""
        with self._lock:
            self._keys = self._keys or self._fill("keys", path_keys)
            return Volume(name=self._keys, path="/keys", read_only=True)

    def hosts(self, role: str) -> Volume:
        """/etc/hosts of an endpoint or of a box of a middlebox."""
        with self._lock:
            self._hosts = self._hosts or self._fill("hosts", _hosts_files)
            file = role if role in _HOSTS else _BOXES
            return Volume(name=self._hosts, path="/etc/hosts", read_only=True, file=file)

    def expected(self, files: tuple[ServedFile, ...]) -> dict[str, Expected]:
        """Size and digest of the files that a client must have, by name. `www` must have been called for them."""
        return {file.name: self._expected[file] for file in files}

    def _contents(self, files: tuple[ServedFile, ...]) -> dict[str, bytes]:
        contents = {file.name: file.content() for file in files}
        for file in files:
            digest = hashlib.sha256(contents[file.name]).digest()
            self._expected[file] = Expected(size=file.size, digest=digest)
        return contents

    def _fill(self, role: str, contents: Callable[[], Mapping[str, bytes]]) -> str:
        """A volume with files in it, written through a container that is never started."""
        name = f"{self._prefix}-{role}-{next(self._numbers)}"
        self._engine.create_volume(name, role=role)
        spec = ContainerSpec(
            image=TOOLS,
            role=f"{role}-filler",
            volumes=(Volume(name=name, path="/volume"),),
            host={"network_mode": "none"},
        )
        filler = self._engine.create(f"{name}-filler", spec)
        try:
            self._engine.put(filler, "/volume", contents())
        finally:
            self._engine.remove(filler)
        return name
