"""The lazy group of commands."""

import subprocess
import sys
from importlib import import_module

import click
from click.testing import CliRunner

from runner.cli.base import options_of
from runner.cli.group import COMMANDS, main
from runner.paths import IMPLEMENTATIONS, ROOT
from runner.plan.options import JobOptions
from runner.tests.records import RECORDINGS


def test_the_table_of_commands_is_that_of_the_modules() -> None:
    context = click.Context(main)
    for module in {module for module, _ in COMMANDS.values()}:
        import_module(f"runner.cli.{module}")
    assert set(main.commands) == set(COMMANDS)
    for name, (_, line) in COMMANDS.items():
        command = main.get_command(context, name)
        assert command is not None
        assert " ".join((command.help or "").split()).startswith(line)


def test_an_option_of_a_command_with_the_name_of_a_field_stays_its_own() -> None:
    received = []

    @click.command()
    @click.option("--lanes", type=int)
    @options_of(JobOptions, ("yes",))
    def command(options: JobOptions, lanes: int) -> None:
        received.append((options.yes, options.lanes, lanes))

    done = CliRunner().invoke(command, ["--lanes", "3", "--yes"], obj=IMPLEMENTATIONS, catch_exceptions=False)
    assert done.exit_code == 0
    assert received == [(True, "1", 3)]


def test_help_imports_nothing_that_is_slow() -> None:
    code = "import sys; from runner.cli.group import main; main(['--help'], standalone_mode=False); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "click" in loaded
    assert not loaded & {"numpy", "pyarrow", "docker", "pydantic", "rich", "jinja2", "paramiko"}


def test_decode_imports_nothing_that_it_does_not_need_and_starts_no_thread() -> None:
    """NumPy's OpenBLAS would start a thread for each further CPU; its waiting takes more CPU time than decoding."""
    capture = RECORDINGS / "quinn_quinn/amplificationlimit/1/sim/left.pcap"
    code = (
        "import os, sys; from runner.cli.group import main; main(sys.argv[1:], standalone_mode=False); "
        "print(len(os.listdir('/proc/self/task')), *sys.modules)"
    )
    command = [sys.executable, "-c", code, "decode", str(capture)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    threads, *loaded = done.stdout.splitlines()[-1].split()
    assert threads == "1"
    assert not set(loaded) & {"pyarrow", "pydantic", "rich", "docker", "jinja2", "paramiko", "socket", "numpy.ma"}
