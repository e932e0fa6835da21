"""The numbers of downloads by curl and of page loads by a browser. Each number is declared once."""

from runner.model.number import TIMES, Number
from runner.model.numbers import DELIVERY_TIME, LINK_SHARE, THROUGHPUT

DOWNLOAD_NUMBERS: tuple[Number, ...] = (
    DELIVERY_TIME,
    THROUGHPUT,
    LINK_SHARE,
    Number(
        key="handshake_time",
        label="connected",
        short="connected",
        shown_in="ms",
        group=TIMES,
        formula="curl's time_appconnect; without TLS, curl's time_connect",
    ),
    Number(
        key="ttfb",
        label="TTFB",
        short="TTFB",
        shown_in="ms",
        group=TIMES,
        formula="curl's time_starttransfer: the first byte of the response",
    ),
)
"""Numbers of a download by curl. The delivery time is read from the capture at the client. Over HTTP/3 it is curl's own
time_total, because the last packets may carry no content. In the formulas, the forward link is the forward direction of
the satellite segment."""

PAGE_NUMBERS: tuple[Number, ...] = (
    Number(
        key="load",
        label="Page Load Time",
        short="load",
        shown_in="s",
        group=TIMES,
        formula="loadEventStart of the Navigation Timing API, from the start of the navigation",
    ),
    Number(
        key="response_start",
        label="Response Start",
        short="response",
        shown_in="s",
        group=TIMES,
        formula="responseStart of the Navigation Timing API, from the start of the navigation",
    ),
    Number(
        key="first_contentful_paint",
        label="First Contentful Paint",
        short="paint",
        shown_in="s",
        group=TIMES,
        formula="first-contentful-paint of the Paint Timing API",
    ),
    Number(
        key="completed",
        label="objects",
        short="objects",
        shown_in="",
        whole=True,
        group=TIMES,
        formula="objects of the page that arrived completely, with status 200",
    ),
)
"""Numbers of a page load by a browser: fields of `PageLoad`."""
