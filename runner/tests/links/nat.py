"""Two routers between a host and its satellite terminal: a home router and a carrier's router, as most terminals have
them. Both translate addresses and ports (RFC 6598, RFC 6888)."""

import subprocess

from lab.testbed.hosts import Host, offloads_off, run

INTERFACE = "lan0"  # the host's interface towards the routers


class Nat:
    """Takes the place of the host at the link: `Satellite` uses it as its client. The host has the address
    192.168.N.100."""

    def __init__(self, host: Host, number: int) -> None:
        self.host, self.number = host, number
        self.name, self._home = f"{host.name}c", f"{host.name}h"

    def open(self, *, outside: str) -> "Nat":
        """Connect the routers. `outside`: the interface that the carrier's router will have towards the satellite."""
        self._router(self._home, f"192.168.{self.number}", inside=(self.host.name, INTERFACE), outside="wan0")
        self._router(self.name, f"100.64.{self.number}", inside=(self._home, "wan0"), outside=outside)
        return self

    @staticmethod
    def _router(name: str, net: str, *, inside: tuple[str, str], outside: str) -> None:
        """Make a router. `inside`: namespace and interface of the neighbour that sends all its packets through it."""
        neighbour, interface = inside
        enter = ("nsenter", f"--net=/run/netns/{name}")
        run("ip", "netns", "add", name)
        run("ip", "-n", name, "link", "add", "lan", "type", "veth", "peer", "name", interface, "netns", neighbour)
        for namespace, end, address in ((name, "lan", f"{net}.1"), (neighbour, interface, f"{net}.100")):
            offloads_off(end, inside=("nsenter", f"--net=/run/netns/{namespace}"))
            run("ip", "-n", namespace, "address", "add", f"{address}/24", "dev", end)
            run("ip", "-n", namespace, "link", "set", end, "up")
        run("ip", "-n", neighbour, "route", "add", "default", "via", f"{net}.1", "dev", interface)
        run(*enter, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        # Without --random-fully the router would keep the source port while this port is free.
        masquerade = ("-t", "nat", "-A", "POSTROUTING", "-o", outside, "-j", "MASQUERADE", "--random-fully")
        run(*enter, "iptables", *masquerade)

    def close(self) -> None:
        """Remove the routers and their wires."""
        for name in (self._home, self.name):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
