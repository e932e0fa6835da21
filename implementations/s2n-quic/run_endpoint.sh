#!/bin/bash
set -eu

# The program reads ROLE, TESTCASE, REQUESTS, CCA, IW and SSLKEYLOGFILE itself.
exec /usr/local/bin/bentpipe-s2n-quic
