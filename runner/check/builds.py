"""Builds the images of two commits of a repository, with the build command that the user gives."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from runner.check.image_source import ImageSource
from runner.errors import SetupError, UsageError

_LINES = 15  # the last lines of a failed build's output, for the error message


def build_commits(
    refs: Mapping[str, str],
    *,
    command: str,
    repository: Path,
    name: str,
    source: ImageSource,
    say: Callable[[str], None],
) -> dict[str, str]:
    """Build the image of each ref. Returns the images by the keys of `refs`. An image that `source` already has is not
    built again.

    `command` runs in a shell, in a checkout of the commit, and tags its image as $IMAGE; without an engine it also
    writes this image into the archive $ARCHIVE. Raises UsageError for a ref that the repository doesn't have, and for a
    build that fails.
    """
    images = {}
    for side, ref in refs.items():
        commit = _git(repository, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
        if not commit:
            raise UsageError(f"--{side} {ref}: {repository} has no such commit. A shallow clone lacks older commits.")
        images[side] = f"bentpipe-ci/{name}:{commit[:12]}"
        if source.has(images[side]):
            say(f"{side} {commit[:12]}: the image exists already.")
            continue
        say(f"{side} {commit[:12]}: {command}")
        more = source.build_environment(images[side])
        _build(repository, commit, command, {"IMAGE": images[side], **more}, side)
        if not source.has(images[side]):
            where = " and write it to $ARCHIVE" if more else ""
            raise UsageError(
                f"--build: the command made no image {images[side]}; it must tag its image as $IMAGE{where}."
            )
    return images


def _build(repository: Path, commit: str, command: str, variables: Mapping[str, str], side: str) -> None:
    with tempfile.TemporaryDirectory(prefix="bentpipe-build-") as folder:
        checkout = Path(folder) / "checkout"
        try:
            if not _git(repository, "worktree", "add", "--detach", str(checkout), commit, printed=True):
                raise SetupError(f"git can't check {commit[:12]} out of {repository}.")
            if (checkout / ".gitmodules").is_file():
                _git(checkout, "submodule", "update", "--init", "--recursive")
            done = subprocess.run(
                ["/bin/bash", "-euo", "pipefail", "-c", command],
                cwd=checkout,
                env={**os.environ, **variables, "COMMIT": commit},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                check=False,
            )
        finally:
            _git(repository, "worktree", "remove", "--force", str(checkout))
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-_LINES:])
        raise UsageError(f"--build of {side} ({commit[:12]}) ended with exit code {done.returncode}:\n{tail}")


def _git(folder: Path, *words: str, printed: bool = False) -> str:
    """The output of git; empty when git failed. `printed`: include the messages of git (stderr)."""
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UsageError(f"--repository {folder}: git can't be run there ({error.strerror}).") from error
    return "" if done.returncode else (done.stdout + (done.stderr if printed else "")).strip()
