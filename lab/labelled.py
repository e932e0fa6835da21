"""Makes the labelled set: `python -m lab.labelled FOLDER [--only NAME,…] [--part look|held|recorded] …`.

Real endpoints run in real lanes, and all results are in one run folder. Captures are deleted, tables are kept. The
causes are in `causes.py`. The same command continues an interrupted set; `--retry` also repeats failed and disturbed
transfers.
`python -m lab.labelled_diagnoses FOLDER` then judges the detectors.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from lab.causes import HELD, LOOK, MISBEHAVING, RECORDED, Labelled, labelled, recorded
from runner.campaign.campaign import Campaign, Retention, stopping
from runner.errors import BentpipeError, UsageError
from runner.images.setup import prepare
from runner.model.result import Outcome
from runner.model.run import Job, Kind, Run
from runner.paths import ROOT
from runner.places.lanes.lanes import Emulated
from runner.places.place import Concurrency
from runner.plan import jobs
from runner.plan.catalog import Catalog, load_catalog, load_implementations
from runner.plan.jobs import remaining
from runner.plan.options import Selection
from runner.plan.variants import RequestedVariants, place
from runner.store.runs import RunFolder
from runner.terminal.printing import RunWatch
from testcases.base import Case

_SEED = 7
TIMEOUT = 60.0


def case_of(transfer: Labelled) -> Case:
    """The case of one transfer. Only its packets are needed, not its verdict. It is a test case, because its goodput
    does not matter."""
    return Case(
        name=transfer.name,
        abbreviation=transfer.name,
        kind=Kind.TEST_CASE,
        description=", ".join(sorted(transfer.expected)) or "clean",
        wire_name=transfer.wire,
        link=transfer.link,
        files=(transfer.size,),
        checks=(),
        timeout=TIMEOUT,
        iterations=transfer.iterations,
    )


def jobs_of(transfer: Labelled) -> tuple[Job, ...]:
    """One job for each iteration."""
    server, client = transfer.server_variant.name, transfer.client_variant.name
    return tuple(
        Job(server=server, client=client, case=transfer.name, iteration=number)
        for number in range(1, transfer.iterations + 1)
    )


def _catalog(chosen: tuple[Labelled, ...]) -> Catalog:
    entries = load_implementations(ROOT / "implementations" / f"_{MISBEHAVING}" / "implementations.json")
    stacks = {**load_catalog().implementations, MISBEHAVING: entries[MISBEHAVING]}
    return Catalog(implementations=stacks, cases={transfer.name: case_of(transfer) for transfer in chosen})


def _planned(path: Path, chosen: tuple[Labelled, ...], console: Console) -> tuple[Catalog, Run]:
    """The catalogue with every variant, and a run with exactly the chosen jobs."""
    catalog = _catalog(chosen)
    stacks = tuple(
        dict.fromkeys(
            variant.stack for transfer in chosen for variant in (transfer.server_variant, transfer.client_variant)
        )
    )
    ready = prepare(
        [catalog.implementations[name] for name in stacks], assume_yes=True, extra_cas=None, console=console
    )
    selection = Selection(servers=stacks, clients=stacks, cases=tuple(catalog.cases))
    variants = (variant for transfer in chosen for variant in (transfer.server_variant, transfer.client_variant))
    requested = RequestedVariants(tuple(dict.fromkeys(variant for variant in variants if variant.parameters)), {})
    placed = place(catalog, selection, requested)
    run = jobs.new_run(
        path,
        placed.catalog,
        placed.selection,
        seed=_SEED,
        shuffled=False,
        image_ids=ready.ids,
        timeout_scale=1.0,
    )
    return placed.catalog, replace(
        run, order=tuple(job for transfer in chosen for job in jobs_of(transfer)), protocols={}
    )


def make(path: Path, chosen: tuple[Labelled, ...], *, lanes: str, retry: bool, console: Console) -> None:
    """Run the chosen jobs that have no result yet; with `retry`, also those that failed or ended with an error."""
    width = Concurrency.parse(lanes)
    catalog, run = _planned(path, chosen, console)
    folder = RunFolder(path, run)
    with folder.locked():
        if (path / "run.json").is_file():
            folder = RunFolder.open(path)
            folder.save_run(jobs.extend_run(folder, run))
        else:
            folder = RunFolder.create(path, run)
        again = frozenset((Outcome.ERROR, Outcome.FAILED)) if retry else frozenset[Outcome]()
        todo = remaining(run.order, folder.results(), again)
        with Emulated.open(folder.run, lanes=width.all) as deployment, RunWatch(console) as watch:
            work = Campaign(
                folder=folder,
                cases=catalog.cases,
                todo=todo,
                verdicts_without_run={},
                deployment=deployment,
                width=width,
                retention=Retention.NONE,
                observer=watch,
            )
            with stopping(work):
                work.execute()


def choose(only: str, part: str) -> tuple[Labelled, ...]:
    """The transfers of a part (empty: of both parts) with the names in `only` (empty: all). Raises UsageError when a
    name is unknown."""
    every = recorded() if part == RECORDED else labelled()
    names = [name for name in only.split(",") if name]
    known = {transfer.name for transfer in every}
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"There is no labelled transfer '{unknown[0]}'. Choices: {', '.join(sorted(known))}.")
    return tuple(
        transfer for transfer in every if (not names or transfer.name in names) and part in ("", transfer.part)
    )


def options_of(command: str) -> argparse.ArgumentParser:
    """The options of the commands that make the set."""
    parser = argparse.ArgumentParser(prog=f"python -m lab.{command}")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="names of transfers, separated by commas")
    parser.add_argument("--part", default="", choices=(LOOK, HELD, RECORDED))
    return parser


def main(arguments: list[str]) -> int:
    """Make the set. Returns 0 when every requested transfer was tried."""
    parser = options_of("labelled")
    parser.add_argument("--lanes", default="1")
    parser.add_argument("--retry", action="store_true", help="repeat failed and disturbed transfers")
    options = parser.parse_args(arguments)
    console = Console()
    try:
        make(
            options.folder,
            choose(options.only, options.part),
            lanes=options.lanes,
            retry=options.retry,
            console=console,
        )
    except BentpipeError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
