"""What a case over paths works with: files to serve, what the client is told, which image it is."""

import hashlib
from collections.abc import Mapping

from runner.inputs.inputs import GivenFile, Material, ServedFile, served_files
from runner.model.implementation import Implementation
from runner.model.run import CaseRecord
from testcases import reference_page

WORKLOAD_IMAGE, BROWSER_IMAGE = "bentpipe/workload", "bentpipe/browser"
PORTS = {"clear": 80, "tls": 443}
_MORE_ORIGINS = 8441  # and up, all with TLS: implementations/_workload/source/nginx.conf
_WARM_PAUSE = 2.0  # s between the two rounds of a warm case: a few round trips in which ends and ACKs arrive
_BROWSER_SPARE = 10.0  # s of the time-out in which a browser that saw no load event can still say so


def images(cases: Mapping[str, CaseRecord]) -> list[Implementation]:
    """The images of origin and clients, as what they are built from."""
    pages = any(case.workload is not None and case.workload.page for case in cases.values())
    return all_images() if pages else [_built_here(WORKLOAD_IMAGE)]


def all_images() -> list[Implementation]:
    """The same for every workload that there is."""
    return [_built_here(WORKLOAD_IMAGE), _built_here(BROWSER_IMAGE)]


def _built_here(tag: str) -> Implementation:
    folder = tag.replace("bentpipe/", "implementations/_")
    return Implementation(name=tag, image=tag, url="", version="", build=folder)


def secret(seed: int) -> str:
    """What the client sends in a header: 32 hexadecimal digits."""
    return hashlib.shake_256(f"secret/{seed}".encode()).hexdigest(16)


def served(case: CaseRecord, seed: int) -> tuple[ServedFile, ...]:
    """The files of a case, the one that is asked for first."""
    if case.workload is not None and case.workload.page:
        more = range(_MORE_ORIGINS, _MORE_ORIGINS + case.workload.origins - 1)
        contents = reference_page.objects(seed, ("", *(f"https://{case.host}:{port}/" for port in more)))
        return tuple(GivenFile(name=name, size=len(data), seed=seed, data=data) for name, data in contents.items())
    return served_files(seed, case.file_sizes)


def material(case: CaseRecord, seed: int) -> Material:
    """Everything that the deployment needs of a case."""
    workload = case.workload
    assert workload is not None
    files = served(case, seed)
    port = PORTS["tls" if workload.encrypted else "clear"]
    scheme = "https" if workload.encrypted else "http"
    environment = {
        "PROTOCOL": workload.protocol,
        "REQUESTS": f"{scheme}://{case.host}/{files[0].name}",
        "SECRET": secret(seed),
        "SSLKEYLOGFILE": "/logs/keys.log",
        "TESTCASE": workload.name,
    }
    if workload.warm:
        environment["WARM"] = f"{_WARM_PAUSE:g}"
    if workload.page:
        once = case.timeout / 2 if workload.warm else case.timeout
        environment |= {"OBJECTS": str(len(files)), "TIMEOUT": f"{once - _BROWSER_SPARE:g}"}
    return Material(
        files=files,
        expected=() if workload.page else files,
        client=environment,
        image=BROWSER_IMAGE if workload.page else WORKLOAD_IMAGE,
        server_port=port,
    )
