"""Commands of nightly runs: night run, night status, night install."""

import shutil
import sys
from datetime import datetime
from pathlib import Path

import click
from rich.markup import escape
from rich.table import Table

from runner.cli.base import SITE, out
from runner.cli.group import main
from runner.model.night import NightRecord, State
from runner.nights.install import SYSTEMD, cron_line, install, unit_names
from runner.nights.night import NightWork
from runner.nights.plan import NIGHT, load_night
from runner.nights.record import load_records, night_folder
from runner.plan.runs import LOGS
from runner.units import format_duration

_SHOWN = 10  # nights at most
_SIGNS = {State.DONE: "✓", State.STOPPED: "⏸", State.FAILED: "✗", State.LEFT_OUT: "–"}

file_option = click.option(
    "--file",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    default=NIGHT,
    show_default="night.json",
    help="File that describes a night.",
)


@main.group()
def night() -> None:
    """Run the matrix every night, as night.json describes (docs/nights.md)."""


@night.command("run")
@file_option
def run(path: Path) -> None:
    """Run one night now, or resume a night that was killed.

    Two nights of the same name never overlap.

    Exit codes: 0 every stage is done · 2 bad input · 3 a stage failed or did not fit into the time.
    """
    work = NightWork(night=load_night(path), logs=LOGS, site=SITE, say=lambda text: out.print(escape(text)))
    record = work.run()
    for line in record.news:
        out.print(escape(line), soft_wrap=True)
    sys.exit(0 if all(stage.state is State.DONE for stage in record.stages) else 3)


@night.command("status")
@file_option
def status(path: Path) -> None:
    """Show the last nights.

    Shows the duration and the stages of each night, the changes of the newest night, and when the next night begins.
    """
    loaded = load_night(path)
    records = load_records(night_folder(LOGS, loaded.name))
    if not records:
        out.print(f"No night of {loaded.name} has run yet: ./bentpipe night run begins one.")
    else:
        out.print(_table(records[:_SHOWN]))
        for line in records[0].news:
            out.print(escape(line), soft_wrap=True)
    installed = (SYSTEMD / unit_names(loaded)[1]).is_file()
    if installed:
        begins = f"The next night begins at {loaded.at:%H:%M}."
    else:
        begins = "No timer is installed: ./bentpipe night install writes one."
    out.print(f"{begins} {shutil.disk_usage(LOGS).free / 1e9:.1f} GB are free below {LOGS}.", soft_wrap=True)


def _table(records: list[NightRecord]) -> Table:
    table = Table("night", "lasted", "stages", box=None)
    for record in records:
        ended = record.ended_unix_s
        lasted = format_duration(ended - record.began_unix_s) if ended is not None else "not ended"
        stages = [
            f"{_SIGNS[stage.state]} {stage.name}{': ' + stage.message if stage.message else ''}"
            for stage in record.stages
        ]
        table.add_row(
            f"{datetime.fromtimestamp(record.began_unix_s):%Y-%m-%d %H:%M}", lasted, escape("\n".join(stages))
        )
    return table


@night.command("install")
@file_option
@click.option(
    "--to",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=SYSTEMD,
    show_default=True,
    help="Folder of systemd's units.",
)
@click.option("--cron", is_flag=True, help="Print a line for `crontab -e` instead.")
def install_(path: Path, folder: Path, cron: bool) -> None:
    """Let systemd start a night every day.

    Writes a service and a timer.
    """
    loaded = load_night(path)
    if cron:
        click.echo(cron_line(loaded, path))
        return
    for unit in install(loaded, path, folder):
        out.print(f"{unit}")
    out.print(f"Next: systemctl daemon-reload && systemctl enable --now {unit_names(loaded)[1]}", soft_wrap=True)
