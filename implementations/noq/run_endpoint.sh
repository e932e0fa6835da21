#!/bin/bash
set -eu

# The program reads ROLE, TESTCASE, REQUESTS, CCA, IW, SSLKEYLOGFILE and QLOGDIR itself.
exec /usr/local/bin/bentpipe-noq
