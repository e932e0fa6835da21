"""Download over HTTP/1.1 and TLS."""

from testcases.loads import KB, download

CASE = download(
    name="download-h1",
    description="curl downloads one file over HTTP/1.1 and TLS: the time from its first packet to the last byte.",
    protocol="http/1.1",
    sizes=(2_000 * KB,),
    sweep=(500 * KB, 2_000 * KB, 10_000 * KB),
)
