"""Makes the independent labelled set: `python -m lab.transfers FOLDER --part look|held [--only
RECIPE,…]`.

Needs cargo, because the generator (`quinn/`) is built once. The folder of each transfer has both captures, a key log,
the generator's records, and `label.json` with the required diagnoses, the diagnoses that don't count, and the true
shares of the limits. Existing transfers are kept. The parts have different seeds and the same recipes.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from lab import link_recipes, real_recipes
from lab.ground import Ground, Recipe
from lab.oracle import Oracle
from lab.recipes import RECIPES
from runner.decode import decode_capture, save_tables

assert link_recipes and real_recipes  # importing these modules adds their recipes to the list

PARTS = {"look": (1_000, 5), "held": (900_000, 9), "fresh": (7_000_000, 9), "sealed": (31_000_000, 9)}
"""Per part: the first seed, and the number of transfers for each recipe."""
_CRATE = Path(__file__).parent / "quinn"


@dataclass(frozen=True)
class Transfer:
    """One transfer of the set."""

    recipe: str
    number: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.recipe}-{self.number}"

    def make(self) -> Recipe:
        """The recipe; the same seed gives the same recipe."""
        random = Random(f"{self.recipe}/{self.seed}")
        return RECIPES[self.recipe](Ground.draw(random), random)


def transfers_of(part: str, only: frozenset[str]) -> Iterator[Transfer]:
    """The transfers of a part, in the order of the recipes."""
    seed, count = PARTS[part]
    for recipe in sorted(RECIPES):
        if not only or recipe in only:
            yield from (Transfer(recipe, number, seed + number) for number in range(count))


def build() -> Path:
    """Build the generator. Returns the path of its program. Raises CalledProcessError when cargo fails."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", _CRATE / "target"))
    subprocess.run(["cargo", "build", "--release", "--quiet", "--locked"], cwd=_CRATE, check=True)
    return target / "release" / "virtual-quinn"


def generate(program: Path, folder: Path, recipe: Recipe) -> None:
    """Run the generator. A lost tail needs two runs, because only a first run shows where the transfer ends."""
    _run(program, folder, recipe.spec)
    if recipe.tail:
        last = _oracle(folder, recipe.spec).sent.last + 1
        recipe.spec["forward"]["lost"] = [(last - recipe.tail + 1, last)]
        _run(program, folder, recipe.spec)


def _run(program: Path, folder: Path, spec: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spec.json").write_text(json.dumps(spec, indent=1))
    subprocess.run([program, folder / "spec.json", folder], check=True)


def _oracle(folder: Path, spec: dict[str, Any]) -> Oracle:
    keys = [folder / "keys.log"]
    return Oracle(
        folder, spec, decode_capture(folder / "client.pcap", keys), decode_capture(folder / "server.pcap", keys)
    )


def label(folder: Path, recipe: Recipe) -> dict[str, Any]:
    """The label of a transfer, from the recipe's behaviours and the effects that the oracle measured."""
    oracle = _oracle(folder, recipe.spec)
    effects = dict(oracle.effects())
    required = recipe.wanted | {code for code, effect in effects.items() if effect.wanted}
    unsure = recipe.unsure | {code for code, effect in effects.items() if effect.unsure}
    if oracle.forward.count("queue") and "ecn-ignored" in required:
        unsure.add("ecn-ignored")  # its definition requires a transfer without loss: losses lower the window, too
    save_tables(oracle.client_side, folder / "client_tables")
    save_tables(oracle.server_side, folder / "server_tables")
    return {
        "wanted": sorted(required - unsure),
        "unsure": sorted(unsure),
        "advertised": recipe.advertised,
        "limits": oracle.shares(),
        "effects": {code: effect.amount for code, effect in effects.items()},
        "first_1rtt": oracle.first_1rtt,
    }


def make(program: Path, folder: Path, transfer: Transfer, relabel: bool = False) -> str:
    """Make one transfer. Returns its name, with the reason when it couldn't be made."""
    place = folder / transfer.name
    exists = (place / "label.json").exists()
    if exists and not relabel:
        return transfer.name
    recipe = transfer.make()
    try:
        if exists:
            recipe.spec = json.loads((place / "spec.json").read_bytes())
        else:
            generate(program, place, recipe)
        text = json.dumps(label(place, recipe), indent=1)
    except subprocess.CalledProcessError as error:
        shutil.rmtree(place, ignore_errors=True)
        return f"{transfer.name}: the generator ended with {error.returncode}"
    (place / "label.json").write_text(text)
    return transfer.name


def main(arguments: list[str]) -> int:
    """Make a part of the set. Returns 0 when every transfer was made."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--part", choices=sorted(PARTS), required=True)
    parser.add_argument("--only", default="", help="recipes, separated by commas")
    parser.add_argument("--relabel", action="store_true", help="measure the labels of existing transfers again")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args(arguments)
    only = frozenset(filter(None, options.only.split(",")))
    if unknown := only - RECIPES.keys():
        parser.error(f"no recipe is called {', '.join(sorted(unknown))}: choose from {', '.join(sorted(RECIPES))}")
    program, folder = build(), options.folder / options.part
    transfers = list(transfers_of(options.part, only))
    with ProcessPoolExecutor(options.workers) as pool:
        done = list(
            pool.map(
                make,
                [program] * len(transfers),
                [folder] * len(transfers),
                transfers,
                [options.relabel] * len(transfers),
            )
        )
    failed = [line for line in done if ":" in line]
    print("\n".join([*failed, f"{len(done) - len(failed)} of {len(done)} transfers are in {folder}"]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
