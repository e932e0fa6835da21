#!/bin/bash
set -eu
# shellcheck source=/dev/null
. /tcp-setup.sh

case $TESTCASE in
    h1 | h2) tcp_setup ;;
    *) echo "applied: cca=cubic iw=32" ;;  # compiled in
esac

# Chromium reads roots of its user's, beside its own, from here. It looks names, dates and chains up as for any server.
certutil -A -d "sql:$HOME/.pki/nssdb" -n bentpipe -t C,, -i /certs/ca.pem

exec python3 /opt/chromium/client.py
