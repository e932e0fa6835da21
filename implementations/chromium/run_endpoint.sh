#!/bin/bash
set -eu
# shellcheck source=/dev/null
. /tcp-setup.sh

case $TESTCASE in
    h1 | h2) tcp_setup ;;
    *) echo "applied: cca=cubic iw=32" ;;  # compiled in
esac

# Chromium trusts the root certificates of this database in addition to its own. It verifies names, dates and chains as for
# any other server.
certutil -A -d "sql:$HOME/.pki/nssdb" -n bentpipe -t C,, -i /certs/ca.pem

exec python3 /opt/chromium/client.py
