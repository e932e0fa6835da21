"""Docker clients that read bounded answers: the engine of another host may be anybody's."""

import time
from typing import Any

import docker
from docker.errors import DockerException
from requests import PreparedRequest, Response

from runner.units import MIB, format_size

LARGEST_ANSWER = 16 * MIB  # bytes of an answer that is no stream: a thousand containers are described in 5 MiB
LONGEST_ANSWER = 60.0  # s from the first byte of such an answer to its last one
_BLOCK = 1 << 16


class BoundedApi(docker.APIClient):
    """docker-py's client, which would read an answer to its end however long that is, and go where one sends it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.max_redirects = 0  # an engine sends nobody elsewhere

    def send(self, request: PreparedRequest, **options: Any) -> Response:
        """As requests.Session.send. Raises DockerException for an answer beyond its limits; streams have none."""
        if options.get("stream"):
            return super().send(request, **options)
        response = super().send(request, **{**options, "stream": True})
        body: Any = response
        body._content, body._content_consumed = _read_body(response), True
        return response


class BoundedDockerClient(docker.DockerClient):
    """The same with docker-py's objects."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.api = BoundedApi(*arguments, **options)


def _read_body(response: Response) -> bytes:
    content, began = bytearray(), 0.0
    try:
        while block := response.raw.read1(_BLOCK, decode_content=True):
            began = began or time.monotonic()
            content += block
            if len(content) > LARGEST_ANSWER:
                raise DockerException(f"its answer has more than {format_size(LARGEST_ANSWER)}")
            if time.monotonic() > began + LONGEST_ANSWER:
                raise DockerException(f"its answer took more than {LONGEST_ANSWER:.0f} s")
    except BaseException:
        response.close()
        raise
    response.raw.release_conn()
    return bytes(content)
