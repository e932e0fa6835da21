#!/bin/bash
# A browser that loads one page. Its measurements are in /logs/workload.json.
set -eu

# Chromium reads roots of its user's, beside its own, from here.
certutil -A -d "sql:$HOME/.pki/nssdb" -n bentpipe -t C,, -i /certs/ca.pem

# WARM: the same once before, uncounted, by a browser of its own, and a pause of so many seconds.
if [[ -n ${WARM:-} ]]; then
    python3 /opt/browser/page.py || true
    rm -rf /tmp/profile /logs/workload.json
    sleep "$WARM"
fi
date +%s.%N > /logs/began
exec python3 /opt/browser/page.py
