"""Content keys of build contexts, parents of Dockerfiles, and which builders a selection needs."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.engine import engine
from runner.errors import SetupError
from runner.images import images, pulling
from runner.images.images import Image
from runner.model.stack import Implementation
from runner.plan.catalog import load_catalog


def key(folder: Path, parents: dict[str, str] | None = None) -> str:
    with images.context_tar(folder) as context:
        return images.source_hash(context, parents or {})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "stack"
    (made / "source").mkdir(parents=True)
    (made / "Dockerfile").write_text("FROM scratch\nCOPY . /\n")
    (made / "run.sh").write_text("#!/bin/sh\n")
    (made / "run.sh").chmod(0o755)
    (made / "source" / "main.c").write_text("int main(void) { return 0; }\n")
    return made


def _touch(folder: Path) -> None:
    os.utime(folder / "source" / "main.c", (1, 1))


def _umask(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode & 0o700)


def _caches(folder: Path) -> None:
    (folder / "source" / "__pycache__").mkdir()
    (folder / "source" / "__pycache__" / "main.pyc").write_text("x")


@pytest.mark.parametrize("change", [_touch, _umask, _caches])
def test_key_ignores_what_does_not_reach_the_image(folder: Path, change: Callable[[Path], None]) -> None:
    before = key(folder)
    change(folder)
    assert key(folder) == before


def _content(folder: Path) -> None:
    (folder / "source" / "main.c").write_text("int main(void) { return 1; }\n")


def _executable(folder: Path) -> None:
    (folder / "run.sh").chmod(0o644)


def _name(folder: Path) -> None:
    (folder / "run.sh").rename(folder / "start.sh")


def _new_file(folder: Path) -> None:
    (folder / "source" / "empty").touch()


def _link(folder: Path) -> None:
    (folder / "run.sh").unlink()
    (folder / "run.sh").symlink_to("source/main.c")


@pytest.mark.parametrize("change", [_content, _executable, _name, _new_file, _link])
def test_key_follows_what_reaches_the_image(folder: Path, change: Callable[[Path], None]) -> None:
    before = key(folder)
    change(folder)
    assert key(folder) != before


def test_key_follows_the_images_below(folder: Path) -> None:
    below = {"bentpipe/base:trixie": "sha256:1", "bentpipe/endpoint": "sha256:2"}
    same = dict(reversed(below.items()))
    assert key(folder, below) == key(folder, same)
    assert key(folder, below) != key(folder, below | {"bentpipe/endpoint": "sha256:3"})
    assert key(folder, below) != key(folder)


def test_dockerignore_is_obeyed(folder: Path) -> None:
    (folder / ".dockerignore").write_text("# not part of the image\nsource/*\n!source/main.c\n")
    before = key(folder)
    (folder / "source" / "notes").write_text("x")
    assert key(folder) == before
    _content(folder)
    assert key(folder) != before


def test_parents_are_resolved_and_stages_left_out(folder: Path) -> None:
    (folder / "Dockerfile").write_text(
        "ARG BASE=bentpipe/base:trixie\n"
        "FROM --platform=linux/amd64 ${BASE} AS build\n"
        "RUN true\n"
        "from bentpipe/endpoint:latest as run\n"
        "COPY --from=build /a /a\n"
        "COPY --chown=0:0 --from=bentpipe/tools /b /b\n"
        "FROM scratch\n"
        "COPY --from=1 /c /c\n"
    )
    image = Image(tag="x", context=folder)
    assert image.parents() == {"bentpipe/base:trixie", "bentpipe/endpoint", "bentpipe/tools"}


def test_dockerfiles_of_this_project_start_from_images_of_this_project() -> None:
    built = images.images_of(load_catalog().implementations.values())
    known = {image.tag for image in built} | {pulling.TAG}
    for image in built:
        assert image.parents() <= known, image.tag


def test_folder_without_dockerfile_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"The image bentpipe/endpoint can't be built: .* has no Dockerfile"):
        images.images_of([], root=tmp_path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with the images that every run needs, and nothing else."""
    for name in ("implementations/_endpoint", "sim", "sim/tools"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "Dockerfile").write_text("FROM bentpipe/base:trixie\n")
    return tmp_path


def stack(root: Path, name: str, *lines: str) -> Implementation:
    """The folder of a stack, or of a builder when its name begins with `_`, and its entry."""
    folder = root / "implementations" / name
    folder.mkdir()
    (folder / "Dockerfile").write_text("\n".join(lines) + "\n")
    return Implementation(
        name=name, image=f"bentpipe/{name}", build=f"implementations/{name}", url="https://example.org", version="1"
    )


def test_builders_are_made_only_for_stacks_that_need_them(root: Path) -> None:
    stack(root, "_c", "FROM bentpipe/base:trixie")
    stack(root, "_rust", "FROM bentpipe/c AS c", "FROM bentpipe/base:trixie", "COPY --from=c /a /a")
    stack(root, "_go", "FROM bentpipe/base:trixie")
    rusty = stack(root, "rusty", "FROM bentpipe/rust:latest AS builder", "FROM bentpipe/endpoint")
    plain = stack(root, "plain", "FROM bentpipe/endpoint")
    copies = stack(root, "copies", "FROM bentpipe/endpoint", "COPY --from=bentpipe/go /go /go")

    def tags(*stacks: Implementation) -> set[str]:
        return {image.tag.removeprefix("bentpipe/") for image in images.images_of(stacks, root)}

    always = {"endpoint", "sim:5", "tools"}
    assert tags() == always
    assert tags(plain) == always | {"plain"}
    assert tags(rusty) == always | {"rusty", "rust", "c"}
    assert tags(copies, plain) == always | {"copies", "plain", "go"}


def test_builder_without_a_folder_is_one_sentence(root: Path) -> None:
    lost = stack(root, "lost", "FROM bentpipe/gone AS builder", "FROM bentpipe/endpoint")
    with pytest.raises(SetupError, match=r"bentpipe/lost starts from bentpipe/gone, and there is no .*/_gone"):
        images.images_of([lost], root)
    (root / "implementations" / "_gone").mkdir()
    with pytest.raises(SetupError, match=r"The image bentpipe/gone can't be built: .* has no Dockerfile"):
        images.images_of([lost], root)


@pytest.mark.docker
def test_missing_image_is_told_with_the_command_that_makes_it() -> None:
    with pytest.raises(SetupError, match=r"The image bentpipe/never is missing: run `\./bentpipe build`"):
        images.image_ids(engine.connect(), ["bentpipe/never"])
