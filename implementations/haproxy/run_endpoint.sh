#!/bin/bash
set -eu
# shellcheck source=/dev/null
. /tcp-setup.sh

case ${CCA:-} in
    newreno | cubic) cca=$CCA ;;
    *) cca=cubic ;;
esac
tls="ssl crt /run/server.pem"
case $TESTCASE in
    h1) tcp_setup; bind=("*:443" "[::]:443 v6only"); tls="$tls alpn http/1.1" ;;
    h2) tcp_setup; bind=("*:443" "[::]:443 v6only"); tls="$tls alpn h2" ;;
    *)
        # The initial window is compiled in: 10 packets of 1252 bytes over IPv4, of 1232 bytes over IPv6.
        echo "applied: cca=$cca iw=10"
        bind=("quic4@:443" "quic6@:443 v6only")
        tls="$tls alpn h3 quic-cc-algo $cca"
        ;;
esac

cat /certs/cert.pem /certs/priv.key > /run/server.pem

cat > /run/haproxy.cfg << END
global
    # Debian's HAProxy supports QUIC only through its compatibility layer over OpenSSL, which this option switches on.
    limited-quic
    nbthread 1
    log stdout format raw local0
$(tr ';' '\n' <<< "${SERVER_PARAMS:-}")
defaults
    mode http
    log global
    option httplog
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend https
    bind ${bind[0]} $tls
    bind ${bind[1]} $tls
    default_backend files
backend files
    server nginx unix@/run/files.sock
END

nginx -c /etc/nginx/bentpipe.conf
# No exec: HAProxy has no handler for SIGTERM, and the first process of a container ignores signals that it doesn't handle.
LD_PRELOAD=/usr/local/lib/keylog.so haproxy -db -f /run/haproxy.cfg &
trap 'kill $!' TERM
wait
