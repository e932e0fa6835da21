"""Sends the news to people: a webhook gets JSON, a mail address gets text through this host's sendmail."""

import json
import subprocess
import urllib.request
from collections.abc import Sequence
from email.message import EmailMessage
from urllib.error import URLError

from runner.errors import SetupError
from runner.nights.plan import Recipient

_SENDMAIL = "/usr/sbin/sendmail"
_LONGEST = 60  # most seconds for one request


def tell(recipient: Recipient, *, title: str, lines: Sequence[str]) -> None:
    """Send `title` and `lines`. Raises SetupError with one sentence."""
    if recipient.webhook is not None:
        _post(recipient.webhook, title, lines)
    elif recipient.mail is not None:
        _mail(recipient.mail, title, lines)


def _post(url: str, title: str, lines: Sequence[str]) -> None:
    """Post JSON to a webhook. Slack, Mattermost and others show `text`; `title` and `lines` are for programs."""
    body = json.dumps({"text": "\n".join((title, *lines)), "title": title, "lines": list(lines)}).encode()
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=_LONGEST):  # night.json allows only http and https
            pass
    except (URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise SetupError(f"The webhook {url} can't be reached: {reason}.") from error


def _mail(address: str, title: str, lines: Sequence[str]) -> None:
    message = EmailMessage()
    message["To"], message["Subject"] = address, title
    message.set_content("\n".join(lines) + "\n")
    try:
        subprocess.run(
            [_SENDMAIL, "-t", "-i"], input=message.as_bytes(), check=True, capture_output=True, timeout=_LONGEST
        )
    except FileNotFoundError as error:
        raise SetupError(f"Mail to {address} can't be sent: this host has no {_SENDMAIL}.") from error
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise SetupError(f"Mail to {address} can't be sent: sendmail failed.") from error
