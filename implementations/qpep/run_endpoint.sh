#!/bin/bash
set -eu

# The contract's ACK_FREQUENCY is qpep's ACK_RATIO. A congestion controller that qpep doesn't have is ignored.
export ACK_RATIO=${ACK_FREQUENCY:-${ACK_RATIO:-}}
case ${CCA:-} in newreno | cubic | bbr) ;; *) unset CCA ;; esac

# shellcheck disable=SC2086  # both are lists separated by spaces
if [[ $ROLE == client ]]; then
    exec qpep client ${CLIENT_PARAMS:-} $REQUESTS
else
    # Clients of other stacks verify the server's certificate.
    export CERTIFICATE=/certs/cert.pem KEY=/certs/priv.key
    exec qpep server ${SERVER_PARAMS:-}
fi
