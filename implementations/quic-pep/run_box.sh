#!/bin/bash
# One of the two hops. QUIC to port 443 that comes in on lan0 is led to the terminal's; the gateway's goes on to the server.
set -eu

port=${LINK_PORT:-4433} own_port=4433
export QLOGDIR=${QLOGDIR:-} SSLKEYLOGFILE=${SSLKEYLOGFILE:-} READY=/logs/ready

if [[ $ROLE == gateway ]]; then
    exec quic-pep gateway -listen ":$port" -ca /keys/ca.pem -certificate /keys/gateway.pem -key /keys/gateway.key \
        -next "$SERVER_ADDRESS:443" -next-ca /certs/ca.pem -next-peer server
fi

# Of datagrams that the kernel segments behind the address translation only some arrive: quic-go sends them one by one.
export QUIC_GO_DISABLE_GSO=true
# Clients look for the server behind the address, and must not get past the proxy. Without one, port 443 answers nothing.
nft -f - <<RULES
table inet quic_pep {
    chain lead {
        type nat hook prerouting priority dstnat
        iifname "lan0" udp dport 443 redirect to :$own_port
    }
}
RULES
exec quic-pep terminal -listen ":$own_port" -certificate /certs/cert.pem -key /certs/priv.key \
    -next "$GATEWAY_ADDRESS:$port" -next-ca /keys/ca.pem -next-certificate /keys/terminal.pem -next-key /keys/terminal.key
