"""`ci` without an engine: facts, builds and refusals with images from archives."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from runner.check.two_builds import BASE, HEAD, ImageSource, build_commits, compare_builds
from runner.errors import BentpipeError, SetupError, UsageError
from runner.images import images
from runner.paths import ROOT
from runner.places.guests.processes import LEAST
from runner.plan.options import BuildOptions
from runner.tests.guests.test_saved_images import packed, save

IMAGE = "example/my-quic"
LAYER = packed([("setup.sh", "file", "x"), ("run_endpoint.sh", "file", "x"), ("other", "file", "x")])
NOT_THIS_MANY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // LEAST + 1  # guests; too many for this host


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Archives of two builds, of one peer, and of the images that guests need."""
    tags = [f"{IMAGE}:{side}" for side in (BASE, HEAD)] + ["bentpipe/quinn:latest", images.SIMULATOR]
    tags += [tag if ":" in tag else f"{tag}:latest" for tag in images.GUEST]
    archives = tmp_path / "archives"
    archives.mkdir()
    for number, tag in enumerate(tags):
        save(archives / f"{number}.tar", [LAYER], tag=tag)
    return archives


def _options(archives: Path, run: Path, **changes: object) -> BuildOptions:
    options: dict[str, object] = {
        "base": f"{IMAGE}:{BASE}",
        "head": f"{IMAGE}:{HEAD}",
        "rootless": archives,
        "peers": ("quinn",),
        "cases": ("handshake",),
        "run": str(run),
    }
    return BuildOptions(**(options | changes))  # type: ignore[arg-type]


def _compare(options: BuildOptions) -> None:
    console = Console(quiet=True)
    compare_builds(options, out=console, err=console)


def test_an_archive_has_the_facts_that_an_engine_has(folder: Path) -> None:
    facts = ImageSource(folder).facts(f"{IMAGE}:{HEAD}")
    assert facts.files == {"/setup.sh", "/run_endpoint.sh"}
    assert facts.starts
    assert (facts.user, facts.platform) == ("", "linux/amd64")
    assert facts.image_id.startswith("sha256:")


def test_without_guests_nothing_else_can_run_the_jobs(folder: Path, tmp_path: Path) -> None:
    options = _options(folder, tmp_path / "out", lanes=str(NOT_THIS_MANY))
    with pytest.raises(SetupError, match=r"can't run virtual time: .* guests at once need .* leave out --rootless"):
        _compare(options)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"clock": "real"}, "--clock real: jobs without Docker run in virtual time"),
        ({"peers": ("quic-go",)}, "no archive there has the image bentpipe/quic-go"),
        ({"head": f"{IMAGE}:other"}, "no archive there has the image example/my-quic"),
    ],
)
def test_what_archives_can_not_do_is_one_sentence(
    folder: Path, tmp_path: Path, changes: dict[str, object], sentence: str
) -> None:
    with pytest.raises(BentpipeError, match=sentence):
        _compare(_options(folder, tmp_path / "out", **changes))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    stack = tmp_path / "stack"
    stack.mkdir()
    for words in (["init", "--quiet"], ["commit", "--quiet", "--allow-empty", "--message", "first"]):
        who = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
        subprocess.run(["git", *who, *words], cwd=stack, check=True)
    return stack


WRITES_ARCHIVE = (
    f"PYTHONPATH={ROOT} {sys.executable} -c 'import os; from pathlib import Path; "
    "from runner.tests.guests.test_saved_images import packed, save; "
    'save(Path(os.environ["ARCHIVE"]), [packed([])], tag=os.environ["IMAGE"])\''
)


def test_a_build_without_an_engine_writes_an_archive_and_runs_once(folder: Path, repository: Path) -> None:
    source, said = ImageSource(folder), list[str]()
    for _ in range(2):
        built = build_commits(
            {HEAD: "HEAD"}, command=WRITES_ARCHIVE, repository=repository, name="x", source=source, say=said.append
        )
    assert source.has(built[HEAD])
    assert said[0].endswith(WRITES_ARCHIVE)
    assert said[1].endswith("the image exists already.")


@pytest.mark.parametrize(
    ("command", "sentence"),
    [("true", r"it must tag its image as \$IMAGE and write it to \$ARCHIVE"), ("false", "exit code 1")],
)
def test_a_build_that_leaves_no_archive_is_one_sentence(
    folder: Path, repository: Path, command: str, sentence: str
) -> None:
    source = ImageSource(folder)
    with pytest.raises(UsageError, match=sentence):
        build_commits({HEAD: "HEAD"}, command=command, repository=repository, name="x", source=source, say=print)


def test_a_build_needs_a_folder_for_its_archives(folder: Path, repository: Path) -> None:
    source = ImageSource(folder / "0.tar")
    with pytest.raises(UsageError, match="with --build name a folder"):
        build_commits({HEAD: "HEAD"}, command="true", repository=repository, name="x", source=source, say=print)
