#!/bin/bash
# WireGuard in user space (wireguard-go). One tunnel between terminal and gateway carries all packets between the two networks.
set -eu
# shellcheck source=/dev/null
. /box-lib.sh

other=$([[ $ROLE == gateway ]] && echo terminal || echo gateway)

# WireGuard needs Curve25519 keys, but /keys contains P-256 keys. Each box has its own key and the certificate of the other box.
# So both boxes can compute the same secret (static ECDH), and no third party can. Each box derives both WireGuard keys from it.
seed=$(openssl pkeyutl -derive -inkey "/keys/$ROLE.key" \
    -peerkey <(openssl x509 -in "/keys/$other.pem" -pubkey -noout) | openssl dgst -sha256 -hex | sed 's/.* //')
private() { printf '%s' "$seed/$1" | openssl dgst -sha256 -binary | base64; }

(umask 077 && private "$ROLE" > /run/private)
public=$(private "$other" | wg pubkey)

clamp_segments
wireguard-go -f wg0 &
tunnel=$!
trap 'kill $tunnel; exit' TERM
# `wg` removes a socket that does not listen yet, and then never finds the interface. So this loop waits until the socket listens
# (00010000 is __SO_ACCEPTCON).
until grep -q ' 00010000 .*/wireguard/wg0.sock$' /proc/net/unix; do sleep 0.05; done

# Only the terminal begins the handshake, and only it knows where its peer is. When both boxes begin within the delay of the link,
# the two initiations cancel each other, and again at each repetition after 5 s. The kernel's first IPv6 packet into the tunnel
# is enough to make the gateway begin, if it can.
port=${LINK_PORT:-51820}
begins=()
if [[ $ROLE == terminal ]]; then begins=(endpoint "$peer:$port" persistent-keepalive 25); fi
wg set wg0 listen-port "$port" private-key /run/private \
    peer "$public" allowed-ips "0.0.0.0/0,::/0" "${begins[@]}"
ip address add "10.77.0.$([[ $ROLE == gateway ]] && echo 1 || echo 2)/24" dev wg0
ip address add "fd00:7::$([[ $ROLE == gateway ]] && echo 1 || echo 2)/64" dev wg0
ip link set wg0 mtu 1420 up
ip route replace "$far4" dev wg0
if [[ -n $far6 ]]; then ip -6 route replace "$far6" dev wg0; fi

until [[ $(wg show wg0 latest-handshakes) =~ [1-9][0-9]*$ ]]; do sleep 0.05; done
ready
wait $tunnel || true
