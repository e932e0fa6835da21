#!/bin/bash
set -eu

# Firefox writes its qlogs to qlog_<pid> in the folder for temporary files; exec keeps the pid.
if [[ -n ${QLOGDIR:-} ]]; then ln -s "$QLOGDIR" "/tmp/qlog_$$"; fi

# Without a window: client.sys.mjs runs in the browser itself, and ends it.
exec /usr/lib/firefox-esr/firefox-esr --profile /opt/firefox/profile --no-remote -silent
