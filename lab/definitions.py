"""Tests that the tables of numbers in testcases/README.md agree with the program: `.venv/bin/python -m
lab.definitions`.

Exit code 1 when they differ; `--write` writes the program's tables into the file.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from runner.model.numbers import DOWNLOAD_NUMBERS, PAGE_NUMBERS, PAIR_NUMBERS, Number
from runner.paths import ROOT

README = ROOT / "testcases" / "README.md"
TABLES = {"pairs": PAIR_NUMBERS, "downloads": DOWNLOAD_NUMBERS, "pages": PAGE_NUMBERS}


def table(numbers: Sequence[Number]) -> str:
    """A Markdown table with name, unit, and formula with its note."""
    rows = [
        f"| {number.label} | {number.shown_in} | {number.formula}. {number.note} |".replace(". |", ". |")
        for number in numbers
    ]
    clean = [row.replace(".  |", " |") for row in rows]
    return "\n".join(["| number | unit | definition |", "| --- | --- | --- |", *clean])


def with_tables(text: str) -> str:
    """The document with the program's tables between their marks. Raises ValueError when a mark is missing."""
    for name, numbers in TABLES.items():
        begin, end = f"<!-- numbers of {name} -->\n", f"\n<!-- end of the numbers of {name} -->"
        if begin not in text or end not in text:
            raise ValueError(f"{README} lacks the marks of the numbers of {name}")
        before, after = text.split(begin)
        text = f"{before}{begin}{table(numbers)}{end}{after.split(end)[1]}"
    return text


@click.command()
@click.option("--write", is_flag=True, help="Write the program's tables into the file.")
def main(write: bool) -> None:
    """Compare the tables of testcases/README.md with the program's definitions."""
    stored = Path(README).read_text(encoding="utf-8")
    document = with_tables(stored)
    if write:
        README.write_text(document, encoding="utf-8")
    elif stored != document:
        click.echo(f"{README} differs from the program: --write copies the program's definitions.", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
