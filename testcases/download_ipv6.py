"""Download over IPv6 and HTTP/1.1 without TLS. It shows whether a middlebox carries IPv6, and whether IPv6 is as fast
as IPv4."""

from testcases.loads import KB, download

CASE = download(
    name="download-ipv6",
    description="curl downloads one file over IPv6 and HTTP/1.1; a tunnel over the satellite may use IPv4.",
    protocol="http/1.1",
    host="server6",
    sizes=(2_000 * KB,),
    sweep=tuple(range(500 * KB, 10_000 * KB + 1, 250 * KB)),
    encrypted=False,
)
