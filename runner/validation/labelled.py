"""Make the labelled set: `python -m runner.validation.labelled FOLDER [--only NAME,…] [--part look|held|recorded] …`.

Real endpoints in real lanes, one run folder; captures are not kept, the tables are. The causes are in `causes.py`.
What was done stays: the same command goes on, and `--retry` runs again what failed or was spoiled. Then
`python -m runner.validation.labelled_diagnoses FOLDER` judges the detectors.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from runner.campaign.campaign import Campaign
from runner.campaign.retention import Retention
from runner.campaign.signals import stopping
from runner.campaign.width import Width
from runner.config.catalog import ROOT, Catalog, load_catalog, load_implementations
from runner.config.selection import Selection
from runner.config.variants import Asked, place
from runner.errors import BentpipeError, UsageError
from runner.images.setup import prepare
from runner.lanes.emulated import Emulated
from runner.model.job import Job
from runner.model.result import Outcome
from runner.model.run import Kind, Run
from runner.plan import runs
from runner.plan.jobs import remaining
from runner.store import RunFolder
from runner.terminal.tables import RunWatch
from runner.validation.causes import HELD, LOOK, MISBEHAVING, RECORDED, Labelled, labelled, recorded
from testcases.base import Case

_SEED = 7
TIMEOUT = 60.0


def case_of(one: Labelled) -> Case:
    """What is asked: no verdict, only packets. As a test case, for nobody wants its goodput."""
    return Case(
        name=one.name,
        abbreviation=one.name,
        kind=Kind.TEST_CASE,
        description=", ".join(sorted(one.expected)) or "clean",
        wire_name=one.wire,
        link=one.link,
        files=(one.size,),
        checks=(),
        timeout=TIMEOUT,
        iterations=one.iterations,
    )


def jobs_of(one: Labelled) -> tuple[Job, ...]:
    """One for each iteration."""
    server, client = one.server_variant.name, one.client_variant.name
    return tuple(
        Job(server=server, client=client, case=one.name, iteration=number) for number in range(1, one.iterations + 1)
    )


def _catalog(chosen: tuple[Labelled, ...]) -> Catalog:
    own = load_implementations(ROOT / "implementations" / f"_{MISBEHAVING}" / "implementations.json")
    stacks = {**load_catalog().implementations, MISBEHAVING: own[MISBEHAVING]}
    return Catalog(implementations=stacks, cases={one.name: case_of(one) for one in chosen})


def _planned(path: Path, chosen: tuple[Labelled, ...], console: Console) -> tuple[Catalog, Run]:
    """The catalogue with every variant, and the run that has exactly the chosen jobs."""
    catalog = _catalog(chosen)
    stacks = tuple(
        dict.fromkeys(variant.stack for one in chosen for variant in (one.server_variant, one.client_variant))
    )
    ready = prepare(
        [catalog.implementations[name] for name in stacks], assume_yes=True, extra_cas=None, console=console
    )
    selection = Selection(servers=stacks, clients=stacks, cases=tuple(catalog.cases))
    variants = (variant for one in chosen for variant in (one.server_variant, one.client_variant))
    asked = Asked(tuple(dict.fromkeys(one for one in variants if one.parameters)), {})
    placed = place(catalog, selection, asked)
    run = runs.new_run(
        path,
        placed.catalog,
        placed.selection,
        seed=_SEED,
        shuffled=False,
        image_ids=ready.ids,
        timeout_scale=1.0,
    )
    return placed.catalog, replace(run, order=tuple(job for one in chosen for job in jobs_of(one)), protocols={})


def make(path: Path, chosen: tuple[Labelled, ...], *, lanes: str, retry: bool, console: Console) -> None:
    """Run what is left of the chosen ones."""
    width = Width.parse(lanes)
    catalog, run = _planned(path, chosen, console)
    folder = RunFolder(path, run)
    with folder.locked():
        if (path / "run.json").is_file():
            folder = RunFolder.open(path)
            folder.save_run(runs.extend_run(folder, run))
        else:
            folder = RunFolder.create(path, run)
        again = frozenset((Outcome.ERROR, Outcome.FAILED)) if retry else frozenset[Outcome]()
        todo = remaining(run.order, folder.results(), again)
        with Emulated.open(folder.run, lanes=width.all) as deployment, RunWatch(console) as watch:
            work = Campaign(
                folder=folder,
                cases=catalog.cases,
                todo=todo,
                presets={},
                deployment=deployment,
                width=width,
                retention=Retention.NONE,
                watch=watch,
            )
            with stopping(work):
                work.execute()


def _chosen(only: str, part: str) -> tuple[Labelled, ...]:
    every = recorded() if part == RECORDED else labelled()
    names = [name for name in only.split(",") if name]
    known = {one.name for one in every}
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"There is no labelled transfer '{unknown[0]}'. Choices: {', '.join(sorted(known))}.")
    return tuple(one for one in every if (not names or one.name in names) and part in ("", one.part))


def main(arguments: list[str]) -> int:
    """0 when all that was asked for has been tried."""
    parser = argparse.ArgumentParser(prog="python -m runner.validation.labelled")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--part", default="", choices=(LOOK, HELD, RECORDED))
    parser.add_argument("--lanes", default="1")
    parser.add_argument("--retry", action="store_true", help="again what failed or was spoiled")
    asked = parser.parse_args(arguments)
    console = Console()
    try:
        make(asked.folder, _chosen(asked.only, asked.part), lanes=asked.lanes, retry=asked.retry, console=console)
    except BentpipeError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
