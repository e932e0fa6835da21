"""Download over HTTP/2."""

from testcases.loads import KB, download

CASE = download(
    name="download-h2",
    description="curl downloads one file over HTTP/2: the time from its first packet to the last byte.",
    protocol="h2",
    sizes=(2_000 * KB,),
    sweep=(500 * KB, 2_000 * KB, 10_000 * KB),
)
