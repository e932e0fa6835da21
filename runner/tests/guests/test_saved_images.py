"""Archives of `docker save`: their images, their root folders, and what is refused."""

import gzip
import io
import json
import subprocess
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import docker
import pytest

from runner.errors import UsageError
from runner.images.pulling import SavedImages
from runner.tests.lanes.conftest import engine

__all__ = ["engine"]

Member = tuple[str, str, str]  # name, type (file, folder, link, hard), content or target


def packed(members: Sequence[Member]) -> bytes:
    kinds = {"file": tarfile.REGTYPE, "folder": tarfile.DIRTYPE, "link": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, kind, text in members:
            member = tarfile.TarInfo(name)
            member.type, member.uid = kinds[kind], 101
            if kind == "file":
                member.size = len(text)
            else:
                member.linkname = text
            tar.addfile(member, io.BytesIO(text.encode()) if kind == "file" else None)
    return buffer.getvalue()


def save(path: Path, layers: Sequence[bytes], *, architecture: str = "amd64", tag: str = "example/one:latest") -> Path:
    """An archive as `docker save` writes it."""
    config = {"architecture": architecture, "config": {"Entrypoint": ["/run"]}}
    names = [f"{number}/layer.tar" for number in range(len(layers))]
    manifest = [{"Config": "config.json", "RepoTags": [tag], "Layers": names}]
    files: Mapping[str, bytes] = {
        **dict(zip(names, layers, strict=True)),
        "config.json": json.dumps(config).encode(),
        "manifest.json": json.dumps(manifest).encode(),
    }
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def root_of(archive: Path, image: str, path: Path) -> dict[str, tuple[bytes, str, int, int, int]]:
    """Name → type, target, owner, mode and size, hard links as the files that they are."""
    SavedImages.open(archive).write_root(image, path)
    return listing(path)


def listing(path: Path) -> dict[str, tuple[bytes, str, int, int, int]]:
    outcome = {}
    with tarfile.open(path) as tar:
        for member in tar:
            real = tar.getmember(member.linkname) if member.islnk() else member
            name = member.name.removeprefix("./").strip("/")
            outcome[name] = (real.type, real.linkname, real.uid, real.mode & 0o7777, real.size)
    return outcome


def contents(path: Path) -> dict[str, str]:
    with tarfile.open(path) as tar:
        files = {member.name: tar.extractfile(member) for member in tar if member.isreg() or member.islnk()}
        return {name: file.read().decode() for name, file in files.items() if file is not None}


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_upper_layers_hide_what_is_below(tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    lower = packed(
        [
            ("etc", "folder", ""),
            ("etc/kept", "file", "kept"),
            ("etc/removed", "file", "x"),
            ("etc/changed", "file", "old"),
            ("opaque", "folder", ""),
            ("opaque/old", "file", "x"),
            ("was-folder", "folder", ""),
            ("was-folder/inside", "file", "x"),
            ("first", "file", "shared"),
            ("second", "hard", "first"),
        ]
    )
    upper = packed(
        [
            ("etc/.wh.removed", "file", ""),
            ("etc/changed", "file", "new"),
            ("opaque", "folder", ""),
            ("opaque/.wh..wh..opq", "file", ""),
            ("opaque/new", "file", "y"),
            ("was-folder", "file", "now a file"),
            ("first", "file", "other"),
            (".wh.never-there", "file", ""),
        ]
    )
    archive = save(tmp_path / "saved.tar", [compress(lower), compress(upper)])
    SavedImages.open(archive).write_root("example/one", tmp_path / "root.tar")
    assert contents(tmp_path / "root.tar") == {
        "etc/kept": "kept",
        "etc/changed": "new",
        "opaque/new": "y",
        "was-folder": "now a file",
        "first": "other",
        "second": "shared",
    }
    with tarfile.open(tmp_path / "root.tar") as tar:
        assert {member.uid for member in tar} == {101}, "owners stay"


def test_images_of_a_folder_of_archives(tmp_path: Path) -> None:
    save(tmp_path / "a.tar", [packed([])])
    save(tmp_path / "b.tar", [packed([])], tag="example/other:2")
    saved = SavedImages.open(tmp_path)
    assert "example/one" in saved and "example/other:2" in saved and "example/other" not in saved
    assert saved.image_id("example/one").startswith("sha256:")
    assert saved.image_config("example/one") == {"Entrypoint": ["/run"]}


def test_an_image_that_no_archive_has(tmp_path: Path) -> None:
    saved = SavedImages.open(save(tmp_path / "a.tar", [packed([])]))
    with pytest.raises(UsageError, match=r"no archive there has the image bentpipe/quinn; .* `docker save -o"):
        saved.image_id("bentpipe/quinn")


def test_an_image_of_another_architecture(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is for arm64; guests run images for amd64"):
        SavedImages.open(save(tmp_path / "a.tar", [packed([])], architecture="arm64"))


@pytest.mark.parametrize("content", [b"", b"no archive", packed([("x", "file", "y")])])
def test_what_docker_save_has_not_written(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.tar").write_bytes(content)
    with pytest.raises(UsageError, match="expected an archive that `docker save` wrote"):
        SavedImages.open(tmp_path / "a.tar")


def test_places_without_archives(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no .*nowhere.tar; a user with Docker makes it"):
        SavedImages.open(tmp_path / "nowhere.tar")
    with pytest.raises(UsageError, match="expected at least one archive"):
        SavedImages.open(tmp_path)


@pytest.mark.docker
@pytest.mark.parametrize("image", ["bentpipe/sim:5", "bentpipe/quinn", "bentpipe/tools"])
def test_the_root_folder_is_the_one_that_the_engine_exports(
    engine: docker.DockerClient, tmp_path: Path, image: str
) -> None:
    saved = tmp_path / "saved.tar"
    subprocess.run(["docker", "save", "-o", str(saved), image], check=True)
    made = engine.containers.create(image, "none", network_mode="none")
    try:
        subprocess.run(["docker", "export", "-o", str(tmp_path / "exported.tar"), str(made.id)], check=True)
    finally:
        made.remove()
    expected, collected = listing(tmp_path / "exported.tar"), root_of(saved, image, tmp_path / "root.tar")
    # The engine adds these to every container that it makes.
    added = {
        "",
        ".",
        ".dockerenv",
        "dev",
        "proc",
        "sys",
        "etc",
        "etc/hosts",
        "etc/hostname",
        "etc/resolv.conf",
        "etc/mtab",
    }
    added |= {name for name in expected if name.startswith("dev/")}
    different = {name for name in expected.keys() | collected.keys() if expected.get(name) != collected.get(name)}
    assert different <= added
    assert SavedImages.open(saved).image_id(image) == engine.images.get(image).id
