"""Publishes the site: to a folder, by rsync, to a branch of a git repository, or to any fsspec URL."""

import shutil
import subprocess
from pathlib import Path

from runner.errors import SetupError, first_line

_GIT = "git+"
_MARKER = ".bentpipe-site"  # as in runner/render/manifest.py
_LONGEST = 1800  # most seconds of one transfer
_AUTHOR = ("-c", "user.name=bentpipe", "-c", "user.email=bentpipe@localhost")


def publish(site: Path, target: str, *, work: Path) -> None:
    """Copy the finished site to `target`.

    `target`: a folder (`/var/www/bentpipe`); `HOST:PATH` for rsync; `git+URL#BRANCH`: the branch gets one commit,
    which replaces the last commit; any other URL goes to fsspec (`s3://BUCKET/PATH`). `work`: a folder for temporary
    files.
    Raises SetupError with one sentence.
    """
    if target.startswith(_GIT):
        _to_branch(site, target.removeprefix(_GIT), work)
    elif "://" in target:
        _to_url(site, target)
    elif ":" in target.partition("/")[0]:
        _run(["rsync", "-a", "--delete", "--copy-links", "--", f"{site}/", target], target)
    else:
        _to_folder(site, Path(target))


def _to_folder(site: Path, target: Path) -> None:
    """Copy the site next to the old site, then exchange both folders: a reader never sees half of a site."""
    fresh, old = target.with_name(target.name + ".new"), target.with_name(target.name + ".old")
    for place in (target, fresh, old):
        if place.exists() and not (place / _MARKER).is_file() and (not place.is_dir() or any(place.iterdir())):
            raise SetupError(f"{place} contains other files than a site of bentpipe: publish to another folder.")
    try:
        for place in (fresh, old):
            if place.is_symlink():
                place.unlink()
            elif place.is_dir():
                shutil.rmtree(place)
        fresh.mkdir()
        (fresh / _MARKER).touch()  # first, so that the next night may remove half of a site
        shutil.copytree(site, fresh, symlinks=False, ignore_dangling_symlinks=True, dirs_exist_ok=True)
        if target.exists():
            target.rename(old)
        fresh.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    except (OSError, shutil.Error) as error:
        raise SetupError(f"The site can't be published to {target}: {first_line(error)}.") from error


def _to_branch(site: Path, target: str, work: Path) -> None:
    """Push one commit without history by force: the history of all nights would fill the repository."""
    url, _, branch = target.partition("#")
    if not branch:
        raise SetupError(f"publish: '{_GIT}{target}' names no branch: write {_GIT}URL#BRANCH.")
    copy = work / "branch"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(site, copy, symlinks=False, ignore_dangling_symlinks=True)
    (copy / ".nojekyll").touch()
    try:
        for command in (
            ["git", "init", "-q", "-b", branch],
            ["git", "add", "-A"],
            ["git", *_AUTHOR, "commit", "-q", "-m", "site"],
            ["git", "push", "-q", "--force", "--", url, branch],
        ):
            _run(command, url, folder=copy)
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def _to_url(site: Path, target: str) -> None:
    try:
        from fsspec.core import url_to_fs  # noqa: PLC0415 - optional: most users publish to a folder
    except ImportError as error:
        raise SetupError(
            f"publish: {target} needs fsspec: run .venv/bin/pip install fsspec (and s3fs, adlfs …)."
        ) from error
    try:
        system, path = url_to_fs(target)
        system.put(f"{site}/", f"{path.rstrip('/')}/", recursive=True)
    except Exception as error:  # each kind of file system raises its own errors
        raise SetupError(f"The site can't be published to {target}: {first_line(error)}.") from error


def _run(command: list[str], target: str, *, folder: Path | None = None) -> None:
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=_LONGEST)
    except FileNotFoundError as error:
        raise SetupError(f"publish: {command[0]} is not installed, and {target} needs it.") from error
    except subprocess.TimeoutExpired as error:
        raise SetupError(f"publish: {command[0]} to {target} took more than {_LONGEST} s.") from error
    except subprocess.CalledProcessError as error:
        why = (error.stderr or error.stdout).strip().splitlines() or [f"exit code {error.returncode}"]
        raise SetupError(f"The site can't be published to {target}: {why[-1]}") from error
