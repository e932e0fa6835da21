#!/bin/bash
set -eu

# The program reads ROLE, TESTCASE, REQUESTS, SSLKEYLOGFILE and FLIGHTS itself.
exec /opt/aioquic/bin/python /opt/hostile/endpoint.py
