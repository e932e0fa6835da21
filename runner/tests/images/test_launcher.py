"""The launcher with real interpreters, environments and pip; its requirements are a wheel of a few bytes."""

import ast
import os
import pwd
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = "import os, sys\nprint(sys.argv[1:], os.getcwd(), __file__)\n"
# Debian's own interpreter: the only one that a user without rights on root's home can start, too.
SYSTEM_PYTHON = Path("/usr/bin/python3")


def wheel(folder: Path, name: str) -> Path:
    path = folder / f"{name}-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", "")
        archive.writestr(f"{name}-1.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        archive.writestr(f"{name}-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{name}-1.dist-info/RECORD", "")
    return path


def make_checkout(folder: Path) -> Path:
    checkout = folder / "a checkout"
    (checkout / "runner" / "tests").mkdir(parents=True)
    shutil.copy(ROOT / "bentpipe", checkout)
    (checkout / "runner" / "__init__.py").touch()
    (checkout / "runner" / "__main__.py").write_text(PROGRAM)
    (checkout / "requirements.txt").write_text(f"{wheel(folder, 'first').as_uri()}\n")
    (checkout / "runner" / "tests" / "requirements.txt").write_text(
        f"-r ../../requirements.txt\n{wheel(folder, 'second').as_uri()}\n"
    )
    return checkout


def launch(path: Path, *arguments: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    return subprocess.run(
        [path, *arguments],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def has_module(checkout: Path, name: str) -> bool:
    return bool(list((checkout / ".venv").glob(f"lib/python3*/site-packages/{name}.py")))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout whose environment two first calls made at the same time."""
    checkout = make_checkout(tmp_path_factory.mktemp("launcher"))
    command = [str(checkout / "bentpipe"), "both"]
    calls = [
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [call.communicate() for call in calls]
    assert [call.returncode for call in calls] == [0, 0], outputs
    assert all(out.startswith("['both']") for out, _ in outputs)
    assert sum(err.count("making the virtual environment") for _, err in outputs) == 1
    return checkout


def test_first_call_installs_what_a_run_needs_and_no_more(made: Path) -> None:
    assert has_module(made, "first")
    assert not has_module(made, "second")


def test_later_calls_are_silent_and_leave_the_environment_alone(made: Path) -> None:
    stamp = (made / ".venv" / "run.stamp").stat().st_mtime_ns
    done = launch(made / "bentpipe", "plan", "--case", "two words")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("['plan', '--case', 'two words']")
    assert (made / ".venv" / "run.stamp").stat().st_mtime_ns == stamp


def test_runs_its_own_program_from_any_folder_and_through_a_link(made: Path, tmp_path: Path) -> None:
    (tmp_path / "runner").mkdir()
    (tmp_path / "runner" / "__init__.py").touch()
    (tmp_path / "runner" / "__main__.py").write_text("print('the wrong program')")
    link = tmp_path / "link"
    link.symlink_to(made / "bentpipe")
    done = launch(link, cwd=tmp_path)
    assert done.stdout == f"[] {tmp_path} {made}/runner/__main__.py\n"


def test_test_command_installs_what_tests_need_once(made: Path) -> None:
    assert launch(made / "bentpipe", "test", "--help").stderr == ""  # help needs no more than a run
    first = launch(made / "bentpipe", "test")
    assert "runner/tests/requirements.txt" in first.stderr
    assert has_module(made, "second")
    assert launch(made / "bentpipe", "test").stderr == ""
    assert launch(made / "bentpipe", "run").stderr == ""


def test_changed_requirements_are_installed_into_the_same_environment(made: Path, tmp_path: Path) -> None:
    by_hand = made / ".venv" / "installed-by-hand"
    by_hand.touch()
    with (made / "requirements.txt").open("a") as file:
        file.write(f"{wheel(tmp_path, 'third').as_uri()}\n")
    done = launch(made / "bentpipe")
    assert done.returncode == 0
    assert has_module(made, "third")
    assert by_hand.exists()


def test_failed_installation_is_told_and_fixed_by_the_next_call(made: Path) -> None:
    requirements = made / "requirements.txt"
    good = requirements.read_text()
    requirements.write_text(f"{good}{(made / 'absent-1-py3-none-any.whl').as_uri()}\n")
    failed = launch(made / "bentpipe")
    assert failed.returncode == 3
    assert failed.stdout == ""
    assert "The Python packages can't be installed" in failed.stderr
    requirements.write_text(good)
    assert launch(made / "bentpipe").returncode == 0


def test_half_made_environment_is_made_anew(made: Path) -> None:
    left = made / ".venv" / "left-by-a-killed-pip"
    left.touch()
    (made / ".venv" / "run.stamp").unlink()
    done = launch(made / "bentpipe")
    assert done.returncode == 0
    assert not left.exists()
    assert has_module(made, "first")


def test_environment_whose_interpreter_is_gone_is_made_anew(made: Path) -> None:
    python = made / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to(made / "uninstalled")
    assert launch(made / "bentpipe").returncode == 0


@pytest.mark.parametrize("present", [None, "#!/bin/sh\nexit 1\n"], ids=["no Python", "an old Python or a dead shim"])
def test_no_usable_python_is_one_sentence(tmp_path: Path, present: str | None) -> None:
    checkout = make_checkout(tmp_path)
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "cat", "cmp", "dirname", "flock", "head", "id", "readlink", "stat"):
        (tools / name).symlink_to(str(shutil.which(name)))
    if present is not None:
        (tools / "python3").write_text(present)
        (tools / "python3").chmod(0o755)
    done = launch(checkout / "bentpipe", PATH=str(tools))
    assert done.returncode == 3
    assert done.stderr.splitlines() == [
        "bentpipe: No Python 3.11 or newer is on PATH: install one (Debian, Ubuntu: apt-get install python3)."
    ]
    assert not (checkout / ".venv").exists()


@pytest.fixture
def as_user(tmp_path: Path) -> list[str]:
    """The command prefix that drops root's rights; `tmp_path` is open to that user."""
    if not SYSTEM_PYTHON.exists():
        pytest.skip(f"{SYSTEM_PYTHON} is not here")
    if os.geteuid() != 0:
        return []
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == pwd.getpwuid(0).pw_name and folder.stat().st_mode & 0o777 == 0o700:
            folder.chmod(0o755)
    return ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


def test_user_who_may_not_write_the_checkout_is_told_who_may(tmp_path: Path, as_user: list[str]) -> None:
    if not as_user:
        pytest.skip("only root can make a checkout of somebody else")
    checkout = make_checkout(tmp_path)
    done = subprocess.run([*as_user, checkout / "bentpipe"], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr.splitlines() == [
        f"bentpipe: {checkout}/.venv must be made or renewed, and nobody can't write there: run it once as root."
    ]


def test_user_whose_environment_belongs_to_root_is_told_so(tmp_path: Path, as_user: list[str]) -> None:
    """As after `sudo ./bentpipe` in one's own checkout."""
    if not as_user:
        pytest.skip("only root can make an environment of root's")
    checkout = make_checkout(tmp_path)
    (checkout / ".venv").mkdir()
    os.chown(checkout, 65534, 65534)
    done = subprocess.run([*as_user, checkout / "bentpipe"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.endswith("can't write there: run it once as root.\n")) == (3, True), (
        done.stderr
    )


def test_python_without_ensurepip_is_told_with_the_package(tmp_path: Path, as_user: list[str]) -> None:
    """Debian and Ubuntu split ensurepip off; a module of that name that can't be imported is the same to Python."""
    checkout = make_checkout(tmp_path)
    (tmp_path / "ensurepip.py").write_text("raise ModuleNotFoundError('split off')\n")
    if as_user:
        os.chown(checkout, 65534, 65534)
    done = subprocess.run(
        [*as_user, checkout / "bentpipe"],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    version = SYSTEM_PYTHON.resolve().name
    assert done.returncode == 3
    assert f"sudo apt-get install {version}-venv" in done.stderr
    assert len(done.stderr.splitlines()) == 1


EXTRAS = {
    "fsspec",
    "dask",
    "distributed",
}  # optional packages; without them, a message names the package to install


def test_every_third_party_import_is_pinned() -> None:
    """A package that merely happens to be in a developer's environment must not reach a fresh one by luck."""
    pinned = {line.split("==")[0].lower().replace("-", "_") for line in _pins("requirements.txt")}
    pinned_for_tests = pinned | {line.split("==")[0].lower() for line in _pins("runner/tests/requirements.txt")}
    pinned_for_tests.add("xdist")  # the module of pytest-xdist
    for path in (path for package in ("runner", "testcases", "lab") for path in (ROOT / package).rglob("*.py")):
        allowed = pinned_for_tests if {"tests", "lab"} & set(path.relative_to(ROOT).parts) else pinned
        known = {"runner", "testcases", "lab", *sys.stdlib_module_names}
        if not (path.parent / "__init__.py").is_file():  # programs of an image import each other by these names
            known |= {neighbour.stem for neighbour in path.parent.glob("*.py")}
        names = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names.add(str(node.module))
        roots = {name.partition(".")[0] for name in names} - known
        assert {name.lower() for name in roots} - EXTRAS <= allowed, path


def _pins(name: str) -> list[str]:
    return [line for line in (ROOT / name).read_text().splitlines() if "==" in line]


def test_every_requirement_is_pinned_to_one_version() -> None:
    for name in ("requirements.txt", "requirements-workers.txt", "runner/tests/requirements.txt"):
        text = (ROOT / name).read_text().replace("\\\n", " ")
        for line in filter(None, map(str.strip, text.splitlines())):
            if not line.startswith(("#", "-r ")):
                assert line.count("==") == 1, line
                assert "--hash=sha256:" in line, line
