#!/bin/bash
# Starts one of the two proxies. The terminal's proxy gets the UDP packets for port 443 that arrive on lan0. The gateway's proxy
# connects to the server.
set -eu

port=${LINK_PORT:-4433} own_port=4433
export QLOGDIR=${QLOGDIR:-} SSLKEYLOGFILE=${SSLKEYLOGFILE:-} READY=/logs/ready

if [[ $ROLE == gateway ]]; then
    exec quic-pep gateway -listen ":$port" -ca /keys/ca.pem -certificate /keys/gateway.pem -key /keys/gateway.key \
        -next "$SERVER_ADDRESS:443" -next-ca /certs/ca.pem -next-peer server
fi

# When the kernel segments a batch of datagrams after the address translation, some datagrams get lost. So quic-go sends each
# datagram alone.
export QUIC_GO_DISABLE_GSO=true
# Clients send to the server's address, and this rule redirects their packets to the proxy. Without a proxy nothing answers, so
# no packet passes it by.
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
