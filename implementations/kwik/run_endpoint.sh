#!/bin/bash
set -eu

# The programs read TESTCASE, REQUESTS and SSLKEYLOGFILE themselves. The garbage collector has only
# one thread, because the lanes share the CPUs.
case $ROLE in client) program=bentpipe.Client ;; *) program=bentpipe.Server ;; esac
exec /opt/java/bin/java -XX:+UseSerialGC -cp '/opt/kwik/*' "$program"
