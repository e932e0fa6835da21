"""Records of nights on disk. They are written after every stage, so that a killed night can be resumed."""

from pathlib import Path

from pydantic import TypeAdapter

from runner.errors import UsageError
from runner.files.safe_files import read_regular
from runner.model.night import NightRecord
from runner.store import parse, to_json, write_atomically

_FOLDER = ".nights"
_RECORD: TypeAdapter[NightRecord] = TypeAdapter(NightRecord)


def night_folder(logs: Path, name: str) -> Path:
    """The folder of records and logs of the night `name`."""
    return logs / _FOLDER / name


def save_record(folder: Path, record: NightRecord) -> None:
    """Write the record. When the process is killed meanwhile, either the old or the new record exists."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / f"{record.stamp}.json", to_json(record, _RECORD))


def load_records(folder: Path) -> list[NightRecord]:
    """The records in this folder, the newest first. Raises UsageError for a record that can't be read."""
    records = []
    for path in folder.glob("*.json"):
        try:
            records.append(_RECORD.validate_python(parse(read_regular(path))))
        except (OSError, ValueError) as error:
            raise UsageError(
                f"{path} can't be read: move it away. A night that was not finished then begins again."
            ) from error
    return sorted(records, key=lambda record: -record.began_unix_s)


def newest_records(logs: Path) -> dict[str, NightRecord]:
    """The newest record of each night, by the night's name; nights without records are left out. Raises UsageError as
    `load_records` does."""
    nights = {path.name: load_records(path) for path in sorted((logs / _FOLDER).glob("*/"))}
    return {name: records[0] for name, records in nights.items() if records}
