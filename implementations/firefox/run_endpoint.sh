#!/bin/bash
set -eu
# shellcheck source=/dev/null
. /tcp-setup.sh

case ${TESTCASE:-} in h1 | h2) tcp_setup ;; esac

# Firefox writes its qlogs to qlog_<pid> in the folder for temporary files; exec keeps the pid.
if [[ -n ${QLOGDIR:-} ]]; then ln -s "$QLOGDIR" "/tmp/qlog_$$"; fi

# Without a window: client.sys.mjs runs in the browser itself, and ends it.
exec /usr/lib/firefox-esr/firefox-esr --profile /opt/firefox/profile --no-remote -silent
