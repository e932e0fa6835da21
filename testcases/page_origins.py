"""Page load from many origins over TLS, as in most pages today (QPEP paper 2021, figure 6: the Alexa list)."""

from testcases.loads import page

CASE = page(
    name="page-origins",
    description="Chromium loads the reference page of 75 objects from 12 origins over HTTP/1.1 and TLS, with an empty "
    "cache.",
    protocol="http/1.1",
    origins=12,
)
