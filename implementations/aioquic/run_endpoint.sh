#!/bin/bash
set -eu

# The programs read TESTCASE, REQUESTS, CCA, IW, SSLKEYLOGFILE and QLOGDIR themselves.
exec /opt/aioquic/bin/python "/opt/aioquic/endpoint/$ROLE.py"
