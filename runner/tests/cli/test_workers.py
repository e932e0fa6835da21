"""`worker join`: only one worker of a checkout may use its scratch folder."""

from pathlib import Path

import pytest

from runner.cli.host_commands import _alone
from runner.errors import UsageError
from runner.files import LOCK_NAME, locked_folder


def test_a_second_worker_is_refused(tmp_path: Path) -> None:
    with (
        locked_folder(tmp_path),
        pytest.raises(UsageError, match="Another worker of this checkout is running"),
        _alone(tmp_path),
    ):
        pass


def test_a_folder_that_cannot_be_locked_is_not_mistaken_for_a_second_worker(tmp_path: Path) -> None:
    (tmp_path / LOCK_NAME).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="can't be written"), _alone(tmp_path):
        pass
