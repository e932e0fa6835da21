#!/bin/bash
set -eu

# The programs read TESTCASE, REQUESTS, SSLKEYLOGFILE and CLIENT_PARAMS or SERVER_PARAMS themselves.
exec /opt/aioquic/bin/python "/opt/misbehaving/$ROLE.py"
