#!/bin/bash
set -eu
# shellcheck source=/dev/null
. /tcp-setup.sh

case ${TESTCASE:-} in h1 | h2) tcp_setup ;; esac

# Firefox writes its qlogs to /tmp/qlog_<pid>. exec keeps the process ID of this shell.
if [[ -n ${QLOGDIR:-} ]]; then ln -s "$QLOGDIR" "/tmp/qlog_$$"; fi

# Firefox opens no window: client.sys.mjs runs inside the browser, and ends it.
exec /usr/lib/firefox-esr/firefox-esr --profile /opt/firefox/profile --no-remote -silent
