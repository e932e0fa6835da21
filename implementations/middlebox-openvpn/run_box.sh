#!/bin/bash
# OpenVPN over UDP, with TLS and the certificates of both boxes. One tunnel between terminal and gateway carries all packets
# between the two networks.
set -eu
# shellcheck source=/dev/null
. /box-lib.sh

clamp_segments

cat > /run/up.sh << END
#!/bin/sh
ip route replace $far4 dev tun0
${far6:+ip -6 route replace $far6 dev tun0}
: > /logs/ready
END
chmod +x /run/up.sh

port=${LINK_PORT:-1194}
common=(
    --dev tun0 --dev-type tun --topology p2p --proto udp4 --port "$port" --local "$own"
    --ca /keys/ca.pem --cert "/keys/$ROLE.pem" --key "/keys/$ROLE.key" --dh none --tls-version-min 1.3
    --ifconfig-ipv6 "fd00:7::$([[ $ROLE == gateway ]] && echo 1 || echo 2)/64" "fd00:7::$([[ $ROLE == gateway ]] && echo 2 || echo 1)"
    # 1448 bytes would just fit: 1500 minus 20 (IP), 8 (UDP) and 24 (OpenVPN).
    --tun-mtu 1420 --mssfix 0
    # Large socket buffers and a long queue: with OpenVPN's defaults, the tunnel would be the bottleneck.
    --sndbuf 4194304 --rcvbuf 4194304 --txqueuelen 1000
    --data-ciphers AES-256-GCM --auth-nocache --allow-compression no --persist-tun
    --script-security 2 --up /run/up.sh --up-delay --verb 3
)
if [[ $ROLE == gateway ]]; then
    exec openvpn "${common[@]}" --tls-server --verify-x509-name terminal name \
        --ifconfig 10.77.0.1 10.77.0.2
fi
exec openvpn "${common[@]}" --tls-client --remote "$peer" "$port" --remote-cert-tls server --verify-x509-name gateway name \
    --ifconfig 10.77.0.2 10.77.0.1 --connect-retry 1 2 --connect-timeout 10
