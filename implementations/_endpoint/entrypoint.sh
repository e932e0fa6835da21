#!/bin/bash
# The entry point of every stack: refuses an unknown test case, prepares the network, waits for the link, starts the stack.
# CLIENT_CASES and SERVER_CASES of the image list the supported test cases: wire names separated by spaces.

case ${ROLE:-} in
    client) supported=${CLIENT_CASES:-} ;;
    server) supported=${SERVER_CASES:-} ;;
    *) echo "ROLE is '${ROLE:-}'; it must be client or server" >&2; exit 1 ;;
esac

# This check comes before the network is prepared, so that an unknown test case is refused even without a link.
is_supported() {
    local name
    for name in $supported; do [[ $name == "${TESTCASE:-}" ]] && return 0; done
    return 1
}
if ! is_supported; then
    echo "test case '${TESTCASE:-}' is not supported as $ROLE"
    exit 127
fi

# shellcheck source=/dev/null  # both are sourced, because starting bash again takes long in virtual time
. /setup.sh

if [[ -n ${QLOGDIR:-} && ! -d $QLOGDIR ]]; then mkdir -p "$QLOGDIR"; fi
# shellcheck source=/dev/null
if [[ $ROLE == client ]]; then (. /wait-for-it.sh sim:57832 -s -t 30) || exit 1; fi

exec /run_endpoint.sh
