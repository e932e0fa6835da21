#!/bin/bash
set -eu

# The contract asks for ACK_FREQUENCY; what quic-go has no code for stays as it is.
export ACK_RATIO=${ACK_FREQUENCY:-${ACK_RATIO:-}}
case ${CCA:-} in newreno | cubic | bbr) ;; *) unset CCA ;; esac

# shellcheck disable=SC2086  # both are lists separated by spaces
if [[ $ROLE == client ]]; then
    exec qpep client ${CLIENT_PARAMS:-} $REQUESTS
else
    exec qpep server ${SERVER_PARAMS:-}
fi
