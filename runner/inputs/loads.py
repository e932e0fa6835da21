"""The inputs of downloads and page loads: served files, and the client's environment."""

import hashlib
from dataclasses import dataclass

from runner.inputs import page
from runner.inputs.inputs import GivenFile, ServedFile, served_files
from runner.model.run import CaseRecord

PORTS = {"clear": 80, "tls": 443}
_MORE_ORIGINS = 8441  # the first TLS port of further origins, see implementations/_workload/source/nginx.conf
_WARM_PAUSE = 2.0  # seconds between the two loads of a warm case, in which the last packets of the first load arrive
_BROWSER_SPARE = 10.0  # seconds of the time-out in which a browser can report a missing load event


@dataclass(frozen=True, kw_only=True)
class Load:
    """The inputs of one download or page load. `expected` files must be in /downloads at the end; `environment`:
    variables of the client. `server_port` is a TCP port."""

    files: tuple[ServedFile, ...]
    expected: tuple[ServedFile, ...]
    environment: dict[str, str]
    server_port: int


def secret(seed: int) -> str:
    """The secret that the client sends in a header: 32 hexadecimal digits."""
    return hashlib.shake_256(f"secret/{seed}".encode()).hexdigest(16)


def served(case: CaseRecord, seed: int) -> tuple[ServedFile, ...]:
    """The files of a case; the file that the client requests first comes first."""
    if case.page:
        more = range(_MORE_ORIGINS, _MORE_ORIGINS + case.origins - 1)
        contents = page.objects(seed, ("", *(f"https://{case.host}:{port}/" for port in more)))
        return tuple(GivenFile(name=name, size=len(data), seed=seed, data=data) for name, data in contents.items())
    return served_files(seed, case.file_sizes, name_length=case.name_length)


def load(case: CaseRecord, seed: int) -> Load:
    """The inputs of a case whose client is a downloader or a browser."""
    files = served(case, seed)
    scheme, port = ("https", PORTS["tls"]) if case.encrypted else ("http", PORTS["clear"])
    environment = {
        "PROTOCOL": case.protocol,
        "REQUESTS": f"{scheme}://{case.host}/{files[0].name}",
        "SECRET": secret(seed),
        "SSLKEYLOGFILE": "/logs/keys.log",
        "TESTCASE": case.wire_names["client"],
    }
    if case.warm:
        environment["WARM"] = f"{_WARM_PAUSE:g}"
    if case.page:
        once = case.timeout / 2 if case.warm else case.timeout
        environment |= {"OBJECTS": str(len(files)), "TIMEOUT": f"{once - _BROWSER_SPARE:g}"}
    return Load(files=files, expected=() if case.page else files, environment=environment, server_port=port)
