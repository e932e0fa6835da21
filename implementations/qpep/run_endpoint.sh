#!/bin/bash
set -eu

# The contract's ACK_FREQUENCY is qpep's ACK_RATIO. A congestion controller that qpep doesn't have is ignored.
export ACK_RATIO=${ACK_FREQUENCY:-${ACK_RATIO:-}}
case ${CCA:-} in newreno | cubic | bbr) ;; *) unset CCA ;; esac

# shellcheck disable=SC2086  # both are lists separated by spaces
if [[ $ROLE == client ]]; then
    if [[ $TESTCASE == upload ]]; then CLIENT_PARAMS="-downloads /www ${CLIENT_PARAMS:-}"; fi
    exec qpep client ${CLIENT_PARAMS:-} $REQUESTS
else
    # Clients of other stacks verify the server's certificate.
    if [[ $TESTCASE == upload ]]; then SERVER_PARAMS="-www /downloads ${SERVER_PARAMS:-}"; fi
    export CERTIFICATE=/certs/cert.pem KEY=/certs/priv.key
    exec qpep server ${SERVER_PARAMS:-}
fi
