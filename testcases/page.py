"""Page load over HTTP/1.1 without TLS (QUIC-PEP paper 2022, table II; QPEP paper 2021, figure 7)."""

from testcases.loads import page

CASE = page(
    name="page",
    description="Chromium loads the reference page of 75 objects over HTTP/1.1 without TLS, with an empty cache.",
    protocol="http/1.1",
    encrypted=False,
)
