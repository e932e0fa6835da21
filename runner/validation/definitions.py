"""The tables of numbers in testcases/README.md are the program's: `.venv/bin/python -m runner.validation.definitions`.

Exit code 1 when they differ; `--write` prints them into the file.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from runner.config.catalog import ROOT
from runner.model.numbers import PAIR_NUMBERS, PATH_DOWNLOAD_NUMBERS, PATH_PAGE_NUMBERS, Number

README = ROOT / "testcases" / "README.md"
TABLES = {"pairs": PAIR_NUMBERS, "downloads": PATH_DOWNLOAD_NUMBERS, "pages": PATH_PAGE_NUMBERS}


def table(numbers: Sequence[Number]) -> str:
    """Markdown: name, unit, formula with its note."""
    rows = [f"| {one.label} | {one.shown_in} | {one.formula}. {one.note} |".replace(". |", ". |") for one in numbers]
    clean = [row.replace(".  |", " |") for row in rows]
    return "\n".join(["| number | unit | definition |", "| --- | --- | --- |", *clean])


def with_tables(text: str) -> str:
    """The document with the program's tables between their marks. Raises ValueError where a mark is missing."""
    for name, numbers in TABLES.items():
        begin, end = f"<!-- numbers of {name} -->\n", f"\n<!-- end of the numbers of {name} -->"
        if begin not in text or end not in text:
            raise ValueError(f"{README} lacks the marks of the numbers of {name}")
        before, rest = text.split(begin)
        text = f"{before}{begin}{table(numbers)}{end}{rest.split(end)[1]}"
    return text


@click.command()
@click.option("--write", is_flag=True, help="Print the tables into the file.")
def main(write: bool) -> None:
    """Compare the tables of testcases/README.md with the program's definitions."""
    stored = Path(README).read_text(encoding="utf-8")
    wanted = with_tables(stored)
    if write:
        README.write_text(wanted, encoding="utf-8")
    elif stored != wanted:
        click.echo(f"{README} has other definitions than the program: run this with --write.", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
