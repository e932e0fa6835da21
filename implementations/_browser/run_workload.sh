#!/bin/bash
# A browser that loads one page over a path. What it measured is /logs/workload.json.
set -eu

# Chromium reads roots of its user's, beside its own, from here.
certutil -A -d "sql:$HOME/.pki/nssdb" -n bentpipe -t C,, -i /certs/ca.pem

exec python3 /opt/browser/page.py
