"""Files that start the night every day: a systemd service and timer, or a line of crontab(5)."""

import getpass
import shlex
from pathlib import Path

from runner.errors import SetupError
from runner.nights.plan import Night
from runner.paths import ROOT
from runner.store import write_atomically

SYSTEMD = Path("/etc/systemd/system")


def unit_names(night: Night) -> tuple[str, str]:
    """The names of service and timer."""
    return f"bentpipe-{night.name}.service", f"bentpipe-{night.name}.timer"


def service(night: Night, path: Path) -> str:
    """The service. Lanes need root's rights over namespaces and Docker; all other rights are taken away.
    `KillMode=mixed` sends SIGTERM only to the process of the night, which then ends its run. Remaining processes are
    killed afterwards.
    """
    return f"""[Unit]
Description=bentpipe: the night {night.name}
After=network-online.target docker.service
Wants=network-online.target

[Service]
Type=oneshot
User={getpass.getuser()}
WorkingDirectory={_specifiers(ROOT)}
ExecStart={_quoted(ROOT / "bentpipe", command=True)} night run --file {_quoted(path.resolve(), command=True)}
TimeoutStartSec={int(night.longest) + 7200}
KillMode=mixed
TimeoutStopSec=400
Nice=5
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=strict
ReadWritePaths={_quoted(ROOT)} /var/log /run
ProtectHome=read-only
ProtectKernelModules=yes
ProtectControlGroups=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
"""


def _specifiers(path: Path) -> str:
    return str(path).replace("%", "%%")


def _quoted(path: Path, *, command: bool = False) -> str:
    """A word of a unit file (systemd.syntax, Quoting), in which systemd replaces nothing. `command`: for ExecStart, in
    which `$` begins the name of a variable."""
    text = _specifiers(path).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + (text.replace("$", "$$") if command else text) + '"'


def timer(night: Night) -> str:
    """The timer. When the host was off at the time of a night, `Persistent` starts the night later."""
    return f"""[Unit]
Description=bentpipe: begins the night {night.name}

[Timer]
OnCalendar=*-*-* {night.at:%H:%M}:00
Persistent=true

[Install]
WantedBy=timers.target
"""


def cron_line(night: Night, path: Path) -> str:
    """The line for `crontab -e`."""
    command = f"cd {shlex.quote(str(ROOT))} && ./bentpipe night run --file {shlex.quote(str(path.resolve()))}"
    return f"{night.at.minute} {night.at.hour} * * * {command} >/dev/null 2>&1".replace("%", r"\%")


def install(night: Night, path: Path, folder: Path) -> tuple[Path, Path]:
    """Write service and timer into `folder`. Raises SetupError when they can't be written."""
    places = tuple(folder / name for name in unit_names(night))
    try:
        for place, text in zip(places, (service(night, path), timer(night)), strict=True):
            write_atomically(place, text.encode())
    except OSError as error:
        raise SetupError(
            f"{folder} can't be written ({error.strerror}): use sudo, or --to FOLDER, or --cron."
        ) from error
    return places[0], places[1]
