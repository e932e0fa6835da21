"""aioquic's TLS engine with messages that the caller edits, and with a HelloRetryRequest before the ClientHello."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from aioquic import tls
from aioquic.buffer import Buffer

# aioquic calls functions and classes of its module, so what `edited` sets belongs to this module.
_editor: Callable[[bytes], bytes] = bytes
_transcript = b""


class _KeySchedule(tls.KeySchedule):  # type: ignore[misc]
    """Continues the transcript of a HelloRetryRequest, which the TLS engine of aioquic can't send."""

    def __init__(self, cipher_suite: tls.CipherSuite) -> None:
        super().__init__(cipher_suite)
        self.hash.update(_transcript)

    def __deepcopy__(self, _: Any) -> "_KeySchedule":
        copied = copy.copy(self)
        copied.hash = self.hash.copy()
        return copied


@contextmanager
def _push_message(key_schedule: Any, buffer: Buffer) -> Iterator[None]:
    """Replaces `tls.push_message`: the transcript has each message as it was edited, so later messages are valid."""
    start = buffer.tell()
    yield
    message = _editor(buffer.data_slice(start, buffer.tell()))
    buffer.seek(start)
    buffer.push_bytes(message)
    key_schedule.update_hash(message)


tls.push_message = _push_message
tls.KeySchedule = _KeySchedule


@contextmanager
def edited(editor: Callable[[bytes], bytes], transcript: bytes) -> Iterator[None]:
    """Within this context, the engine sends each message as `editor` returns it. `transcript`: the messages before the
    ClientHello that the engine sees."""
    global _editor, _transcript
    _editor, _transcript = editor, transcript
    try:
        yield
    finally:
        _editor, _transcript = bytes, b""
