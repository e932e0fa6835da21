"""Download over HTTP/1.1 without TLS, for comparison with iperf3 in the QPEP paper (2021, figure 5: 0.5 to 10 MB in
steps of 250 kB)."""

from testcases.loads import KB, download

CASE = download(
    name="download",
    description="curl downloads one file over HTTP/1.1 without TLS: the time from its SYN to the last byte.",
    protocol="http/1.1",
    sizes=(500 * KB, 2_000 * KB, 10_000 * KB),
    sweep=tuple(range(500 * KB, 10_000 * KB + 1, 250 * KB)),
    encrypted=False,
)
