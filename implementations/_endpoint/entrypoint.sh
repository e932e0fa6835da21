#!/bin/bash
# The same beginning for every stack: refuse, prepare the network, wait for the path, hand over to the stack.
# The image says what it supports: CLIENT_CASES and SERVER_CASES, wire names separated by spaces.

case ${ROLE:-} in
    client) supported=${CLIENT_CASES:-} ;;
    server) supported=${SERVER_CASES:-} ;;
    *) echo "ROLE is '${ROLE:-}'; it must be client or server" >&2; exit 1 ;;
esac

# Before the network is touched, so that the answer to an unknown test case never depends on a path.
is_supported() {
    local name
    for name in $supported; do [[ $name == "${TESTCASE:-}" ]] && return 0; done
    return 1
}
if ! is_supported; then
    echo "test case '${TESTCASE:-}' is not supported as $ROLE"
    exit 127
fi

/setup.sh

if [[ -n ${QLOGDIR:-} ]]; then mkdir -p "$QLOGDIR"; fi
if [[ $ROLE == client ]]; then /wait-for-it.sh sim:57832 -s -t 30 || exit 1; fi

exec /run_endpoint.sh
