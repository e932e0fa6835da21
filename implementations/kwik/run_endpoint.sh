#!/bin/bash
set -eu

# The programs read TESTCASE, REQUESTS and SSLKEYLOGFILE themselves. One collector thread: the lane's CPUs are shared.
case $ROLE in client) program=bentpipe.Client ;; *) program=bentpipe.Server ;; esac
exec /opt/java/bin/java -XX:+UseSerialGC -cp '/opt/kwik/*' "$program"
