"""The options that choose jobs, shared by `plan` and `run`."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from runner.config.links import LINKS
from runner.config.options import MatrixOptions
from runner.errors import UsageError


def selection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose jobs."""
    options = (
        click.option(
            "--server",
            "servers",
            multiple=True,
            metavar="NAME",
            help="Server stacks. Repeat the option or separate names by commas. [all]",
        ),
        click.option("--client", "clients", multiple=True, metavar="NAME", help="Client stacks. [all]"),
        click.option(
            "--case",
            "cases",
            multiple=True,
            metavar="NAME",
            help="Test cases and measurements, by name or abbreviation. [all]",
        ),
        click.option(
            "--via",
            "vias",
            multiple=True,
            metavar="NAME",
            help="Middleboxes between client and server: VPNs, PEPs. [none]",
        ),
        click.option(
            "--link",
            "links",
            multiple=True,
            metavar="NAME|rate=…",
            help="Links by name, emulated or real, or a link as text: rate=50M/5M,delay=300ms,loss=0.1%,queue=1bdp. "
            "[each case's own]",
        ),
        click.option(
            "--size",
            "sizes",
            multiple=True,
            metavar="BYTES|all",
            help="Size of the file, for measurements that download one file. all: several sizes from 0.5 to 10 MB. "
            "[the case's own]",
        ),
        click.option(
            "--loss",
            "losses",
            multiple=True,
            metavar="0…1|all",
            help="Packet loss in both directions of the satellite segment. all: 0, and 28 fractions from 1e-9 to 1. "
            "[the link's own]",
        ),
        click.option(
            "--beside",
            "besides",
            multiple=True,
            metavar="FLOW",
            help="A second download through the same link: tcp-cubic, tcp-bbr, tcp-reno or a stack. [none]",
        ),
        click.option(
            "--warm", is_flag=True, help="Do the download or the page load twice, and measure only the second one."
        ),
        click.option("--path", "old_paths", multiple=True, hidden=True),
        click.option("--workload", "old_workloads", multiple=True, hidden=True),
        click.option(
            "--iterations",
            type=click.IntRange(1, 1000),
            help="Iterations of each measurement and of each test case with random losses. [as declared, mostly 10]",
        ),
        click.option(
            "--variant",
            "variants",
            multiple=True,
            metavar="STACK:NAME=VALUE,…",
            help="Add the stack with other settings (CCA, IW, ACK_FREQUENCY, CLIENT_PARAMS, SERVER_PARAMS) as one more "
            "row or column, or a middlebox with other settings. `list` shows the settings. IW=10/32 adds two variants.",
        ),
        click.option(
            "--image",
            "images",
            multiple=True,
            metavar="NAME=IMAGE",
            help="Use this local image for the stack NAME.",
        ),
        click.option(
            "--seed",
            type=click.IntRange(0, 2**31 - 1),
            help="Seed of links, files and order. [random, recorded in run.json]",
        ),
        click.option("--shuffle", is_flag=True, help="Run the jobs in random order, drawn from the seed."),
    )
    return functools.reduce(lambda wrapped, option: option(wrapped), reversed(options), command)


def clock_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--clock` of `plan`, `run` and `demo`."""
    return click.option(
        "--clock",
        type=click.Choice(["real", "virtual", "auto"]),
        help="real: real time. virtual: each job runs in a small kernel whose clock jumps ahead while programs "
        "wait. auto: virtual for cases that mostly wait, real for cases that the CPU can limit. "
        "[existing run's or real]",
    )(command)


def cpu_model_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--cpu-model` of `run`."""
    return click.option(
        "--cpu-model",
        type=click.Choice(["none", "calibrated", "measured"]),
        help="In virtual time, CPU work takes no time (none), takes the time that the calibration of this host found "
        "(calibrated), or takes no time but is measured (measured). [existing run's or none]",
    )(command)


def links_file_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--links` of `plan` and `run`."""
    return click.option(
        "--links",
        "links_file",
        type=click.Path(dir_okay=False, path_type=Path),
        default=LINKS,
        show_default="links.json",
        help="File that describes real links and their hosts.",
    )(command)


def matrix_options(implementations: Path, options: dict[str, Any]) -> MatrixOptions:
    """The parsed options as a MatrixOptions. Raises UsageError for options of older versions."""
    if options.pop("old_paths"):
        raise UsageError("--path is now called --via, such as --via openvpn,qpep. Write --via none for no middlebox.")
    if options.pop("old_workloads"):
        raise UsageError("--workload is now called --case, such as --case download,page.")
    return MatrixOptions(implementations=implementations, **options)
