#!/bin/bash
# Loads one page in a browser. The measurements are in /logs/workload.json.
set -eu

# Chromium trusts the root certificates of this database in addition to its own.
certutil -A -d "sql:$HOME/.pki/nssdb" -n bentpipe -t C,, -i /certs/ca.pem

# WARM: load the page once before the measurement, in a separate browser, then wait for WARM seconds.
if [[ -n ${WARM:-} ]]; then
    python3 /opt/browser/page.py || true
    rm -rf /tmp/profile /logs/workload.json
    sleep "$WARM"
fi
date +%s.%N > /logs/began
exec python3 /opt/browser/page.py
