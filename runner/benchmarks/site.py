"""How long the site of a big run takes: drawn from nothing, drawn again, after one job changed; then in Chromium.

    python -m runner.benchmarks.site RUN... [--jobs 5000] [--stacks 20] [--folder DIR]

The run is made of copies of real results, with their series and logs, under the names of as many stacks and cases as
wanted. Its numbers mean nothing: those of disturbed jobs are among them. Prints seconds, and what Chromium takes to
open the overview and to filter it, when playwright and Chromium are installed.
"""

import argparse
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random

from runner.config.catalog import load_catalog
from runner.model.job import Job
from runner.model.result import Outcome, Result
from runner.model.run import CaseRecord, Kind, Run
from runner.render import render
from runner.store import RunFolder

_MEASUREMENTS = 12
_SMALL = 256 * 1024  # bytes of a file that is copied with a job


def enlarged(sources: Sequence[RunFolder], target: Path, *, jobs: int, stacks: int, seed: int) -> RunFolder:
    """A run of `jobs` jobs between `stacks` servers and clients, copied from jobs of `sources` that have numbers."""
    random = Random(seed)
    known = [(folder, job, one) for folder in sources for job, one in folder.results().items() if _usable(one)]
    if not known:
        raise SystemExit("None of these runs has a result with numbers and a series: name others.")
    run = _run(sources, target.name, jobs=jobs, stacks=stacks, seed=seed)
    folder = RunFolder.create(target, run)
    for job in run.order:
        sat = run.case(job).return_.data_rate < run.case(job).forward.data_rate
        fitting = [entry for entry in known if (entry[1].case == "sat") is sat] or known
        source, original, result = random.choice(fitting)
        _copy(source.artifacts(original).folder, folder.artifacts(job).folder)
        changed = replace(result, server=job.server, client=job.client, case=job.case, iteration=job.iteration)
        spoiled = random.random() < 0.02
        folder.save_result(changed if spoiled else replace(changed, outcome=Outcome.SUCCEEDED, findings=()))
    return folder


def _usable(one: Result) -> bool:
    return one.sample is not None and one.sample.goodput is not None and one.sample.file_size > 1_000_000


def _run(sources: Sequence[RunFolder], name: str, *, jobs: int, stacks: int, seed: int) -> Run:
    first = sources[0].run
    records = {name: one for folder in sources for name, one in folder.run.implementations.items()}
    chosen = list(records)[:stacks]
    chosen += [f"{chosen[index % len(chosen)]}-{2 + index // len(chosen)}" for index in range(stacks - len(chosen))]
    cases = list(_cases())
    iterations = max(1, jobs // (len(cases) * stacks**2))
    order = [
        Job(server=server, client=client, case=case.name, iteration=iteration)
        for server, client, case, iteration in product(chosen, chosen, cases, range(1, iterations + 1))
    ][:jobs]
    return replace(
        first,
        name=name,
        seed=seed,
        servers=tuple(chosen),
        clients=tuple(chosen),
        cases={case.name: replace(case, iterations=iterations) for case in cases},
        implementations={
            one: replace(records[one if one in records else one.rpartition("-")[0]], name=one) for one in chosen
        },
        order=tuple(order),
        protocols={},
    )


def _cases() -> Iterator[CaseRecord]:
    """Twelve measurements and one test case: those of the catalogue, and the same again under other names."""
    records = [case.record() for case in load_catalog().cases.values()]
    measurements = [record for record in records if record.kind is Kind.MEASUREMENT]
    for number in range(_MEASUREMENTS):
        record = measurements[number % len(measurements)]
        again = number // len(measurements)
        name = f"{record.name}-{again + 1}" if again else record.name
        yield replace(record, name=name, abbreviation=f"{record.abbreviation}{again or ''}")
    yield next(record for record in records if record.name == "handshake")


def _copy(source: Path, target: Path) -> None:
    """Small files as they are; where possible as second names of the same file, which costs no disk."""
    for path in source.rglob("*"):
        wanted = path.is_file() and (path.stat().st_size <= _SMALL or path.name == "series.json")
        if wanted and path.name != "result.json":
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path, place)
            except OSError:
                shutil.copyfile(path, place)


def _seconds(folder: RunFolder, site: Path) -> str:
    """Wall time, and CPU time of all processes: on a busy host only that says what the drawing costs."""
    begin, spent = time.perf_counter(), _cpu()
    render([RunFolder.open(folder.path)], site)
    return f"{time.perf_counter() - begin:8.2f} s, {_cpu() - spent:8.2f} s of CPU"


def _cpu() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _browse(page: Path) -> dict[str, float] | None:
    """Milliseconds until the page is loaded and painted, and of each way to filter it until it is painted again.

    Each way begins on a page at rest. What comes into view by one, such as the matrix below one that went, is laid out
    in the frame after: "next frame" is the time until then.
    """
    try:
        from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only the tests' requirements have it
    except ImportError:
        return None
    chromium = shutil.which("chromium")
    if chromium is None:
        return None
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        view = browser.new_page(viewport={"width": 1500, "height": 1000})
        view.goto(page.as_uri())
        view.goto(page.as_uri())  # with the files in the system's cache
        found: dict[str, float] = view.evaluate(_MEASURE)
        browser.close()
    return found


_MEASURE = """async () => {
  const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  await painted();
  const load = performance.getEntriesByType("navigation")[0];
  const paint = performance.getEntriesByName("first-contentful-paint")[0];
  const found = { "first contentful paint": paint ? paint.startTime : NaN, "load event": load.loadEventEnd };
  const act = async (name, change) => {
    const begin = performance.now();
    change();
    await painted();
    found[name] = performance.now() - begin;
    await painted();
    found[`${name}, next frame`] = performance.now() - begin;
    await new Promise((done) => setTimeout(done, 1000));
  };
  const form = document.getElementById("filters");
  const told = { bubbles: true };
  for (const name of ["clients", "servers", "cases"]) {
    const box = form.querySelector(`input[name=${name}]`);
    await act(`${name}: one off`, () => { box.checked = false; box.dispatchEvent(new Event("change", told)); });
  }
  for (const value of ["goodput", "ttlb"]) {
    const radio = form.querySelector(`input[name=show][value=${value}]`);
    await act(`show ${value}`, () => { radio.checked = true; radio.dispatchEvent(new Event("change", told)); });
  }
  await act("show all", () => form.reset());
  return found;
}"""


def main() -> None:
    """Print one line per measurement."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--stacks", type=int, default=20)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/bentpipe-site"), help="Made anew.")
    options = parser.parse_args()
    shutil.rmtree(options.folder, ignore_errors=True)
    sources = [RunFolder.open(path) for path in options.runs]
    folder = enlarged(sources, options.folder / "big", jobs=options.jobs, stacks=options.stacks, seed=1)
    site = options.folder / "site"
    print(f"{len(folder.run.order)} jobs, {options.stacks} × {options.stacks} stacks, {len(folder.run.cases)} cases")
    print(f"{_seconds(folder, site)}: from nothing, {len(os.sched_getaffinity(0))} cores", flush=True)
    print(f"{_seconds(folder, site)}: again, nothing changed", flush=True)
    job = folder.run.order[len(folder.run.order) // 2]
    result = folder.result(job)
    assert result is not None
    folder.save_result(replace(result, wall_s=result.wall_s + 1))
    print(f"{_seconds(folder, site)}: after one job changed", flush=True)
    page = site / "big" / "index.html"
    print(f"{page.stat().st_size / 1e6:8.2f} MB overview")
    for name, value in (_browse(page) or {}).items():
        print(f"{value:8.0f} ms {name}")
    print(json.dumps({"pages": sum(1 for _ in (site / "big").rglob("*.html"))}))


if __name__ == "__main__":
    main()
