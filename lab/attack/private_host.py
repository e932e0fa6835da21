"""A host with a Docker Engine and a file system of its own, for runs that are attacked."""

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import docker

from lab.testbed.hosts import Host, free_number
from runner.images import pulling
from runner.images.images import build, images_of
from runner.plan.catalog import load_catalog

_DISK = 4 << 30  # bytes of the run's file system, sparse


@contextlib.contextmanager
def private_host(folder: Path, *, stacks: Sequence[str], guests: bool) -> Iterator[Host]:
    """A host with the images of these stacks, and a file system of its own in `folder`/disk. `guests`: the host also
    gets the images for virtual time."""
    host = Host(folder, free_number())
    image, disk = folder / "disk.ext4", folder / "disk"
    disk.mkdir()
    try:
        host.open()  # before the mount; otherwise the host's namespace would get a copy of the mount
        for words in (f"truncate -s {_DISK} {image}", f"mkfs.ext4 -q -m 0 {image}", f"mount -o loop {image} {disk}"):
            subprocess.run(words.split(), check=True)
        implementations = load_catalog().implementations
        needed = images_of((implementations[stack] for stack in stacks), guests=guests)
        build(docker.from_env(), needed, report=lambda _: None)  # a private engine reaches no mirror
        host.load(pulling.TAG, *(image.tag for image in needed))
        yield host
    finally:
        host.close()
        subprocess.run(["umount", "--lazy", disk], check=False)  # a child of a killed runner may still use the disk
