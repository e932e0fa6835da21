"""What a workload is: files to download, or a page to load, over one protocol.

To add one, add a module to this package with a `WORKLOAD`. Nothing else has to know.
"""

from dataclasses import dataclass

KB = 1_000  # bytes: the papers' sizes are decimal


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One question to a path. `sizes` in bytes: each is a case of its own, of one file; `sweep`: all that papers ask.

    A page has no sizes: a browser loads the reference page (reference_page.py). `host`: server4, or server6 over IPv6.
    """

    name: str
    description: str
    protocol: str  # http/1.1, h2, h3
    host: str = "server4"
    sizes: tuple[int, ...] = ()
    sweep: tuple[int, ...] = ()
    page: bool = False
    origins: int = 1  # over how many the objects of a page are spread: each costs a connection of its own
    encrypted: bool = True  # TLS end to end: no path can show more than addresses, ports and the server's name
    iterations: int = 10
    source: str = ""  # who measured the like

    @property
    def transport(self) -> str:
        """What the network sees: tcp or udp."""
        return "udp" if self.protocol == "h3" else "tcp"
