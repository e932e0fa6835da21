"""Page load over HTTP/2 (QUIC-PEP paper 2022, table II)."""

from testcases.loads import page

CASE = page(
    name="page-h2",
    description="Chromium loads the reference page of 75 objects over HTTP/2, with an empty cache.",
    protocol="h2",
)
