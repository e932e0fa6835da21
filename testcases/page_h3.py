"""Page load over HTTP/3 (QUIC-PEP paper 2022, table II)."""

from testcases.loads import page

CASE = page(
    name="page-h3",
    description="Chromium loads the reference page of 75 objects over HTTP/3, with an empty cache.",
    protocol="h3",
)
