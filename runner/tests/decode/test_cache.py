"""The key of stored tables: it changes exactly when the decoder would read something else."""

import os
from pathlib import Path

from runner.decode.keys import LARGEST_KEY_LOG
from runner.decode.tables import cache_key


def test_tables_stay_valid_when_only_the_unread_rest_of_a_key_log_changes(tmp_path: Path) -> None:
    """A sparse key log of 1 TB was once read to its end for the key of the tables."""
    capture, keys = tmp_path / "client.pcap", tmp_path / "keys.log"
    capture.write_bytes(b"a capture")
    found = []
    for content, size in ((b"a secret", 2), (b"a secret", 3), (b"another", 2)):
        keys.write_bytes(content)
        os.truncate(keys, size * LARGEST_KEY_LOG)
        found.append(cache_key((capture, capture), (keys,), 0))
    assert found[0] == found[1] != found[2]
