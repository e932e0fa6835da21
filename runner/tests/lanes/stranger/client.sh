#!/bin/bash
# A client that fetches over TCP, or does what no client should.

fetch() { # host
    local url name
    for url in $REQUESTS; do
        name=${url##*/}
        exec 3<> "/dev/tcp/${1:-server4}/443"
        printf 'GET /%s\r\n' "$name" >&3
        cat <&3 > "/downloads/$name"
        exec 3>&-
    done
}

first() { set -- $REQUESTS; echo "/downloads/${1##*/}"; }

/setup.sh || exit 9
/wait-for-it.sh sim:57832 -s -t 10 || exit 8

case $TESTCASE in
    fetch) fetch ;;
    fetch6) fetch server6 ;;
    hang) sleep infinity ;;
    burn) while true; do :; done ;;
    poll-clock) while true; do : $EPOCHREALTIME; for _ in 1 2 3 4 5 6 7 8 9; do :; done; done ;;
    exit) exit 3 ;;
    die-slowly) sleep 4; fetch ;;
    vectors) /vectors ;;
    poll-nothing)
        exec python3 -c '
import select, time

for look in (lambda: select.poll().poll(0), lambda: select.select([], [], [], 0), lambda: select.epoll().poll(0)):
    looks, end = 0, time.monotonic() + 0.02
    while time.monotonic() < end:
        look()
        looks += 1
    print(looks)'
        ;;
    flood-output) exec yes ;;
    flood-link)
        exec python3 -c '
import socket
flood = socket.socket(type=socket.SOCK_DGRAM)
while True:
    flood.sendto(bytes(1200), ("server4", 443))' ;;
    spoof) # packets in the server's name, in the open, behind a VLAN tag, over IPv6, and by an address of its own
        fetch
        ip address add 193.167.100.100/32 dev lo
        exec python3 -c '
import socket, struct, time
raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
raw.bind(("eth0", 0))
here = raw.getsockname()[4]
there = bytes.fromhex("02bb00000002")
def total(data):
    words = sum(struct.unpack(f">{len(data) // 2}H", data))
    return ~(words + (words >> 16)) & 0xFFFF
payload = b"FORGED"
udp = struct.pack(">HHHH", 443, 50000, 8 + len(payload), 0) + payload
head = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 1, 0, 64, 17, 0, socket.inet_aton("193.167.100.100"),
                   socket.inet_aton("193.167.0.100"))
v4 = head[:10] + struct.pack(">H", total(head)) + head[12:] + udp
v6 = struct.pack(">IHBB", 6 << 28, len(udp), 17, 64) + socket.inet_pton(10, "fd00:cafe:cafe:100::100") * 2 + udp
for _ in range(10):
    raw.send(there + here + b"\x08\x00" + v4)
    raw.send(there + here + b"\x81\x00\x00\x05\x08\x00" + v4)
    raw.send(there + here + b"\x86\xdd" + v6)
time.sleep(0.2)' ;;
    small-mtu) ip link set eth0 mtu 68; (sleep 1.5; ip link set eth0 mtu 1500) & fetch; wait ;;
    link-off) ip link set eth0 down; sleep 1 ;;
    delete-link) ip link delete eth0; sleep 1 ;;
    flap) for _ in $(seq 200); do ip link set eth0 down; ip link set eth0 up; done ;;
    flood-logs) fetch; dd if=/dev/zero of=/logs/big bs=1M count=1000; exit 1 ;;
    flood-downloads) fetch; dd if=/dev/zero of=/downloads/big bs=1M count=1000; exit 1 ;;
    fill-root) fetch; exec dd if=/dev/zero of=/filling bs=1M ;;
    fill-many) # in files that are small, and after the first as fast as it can
        fetch
        mkdir /filling
        for number in $(seq 100000); do head -c 1000000 /dev/zero > /filling/$number; done ;;
    reserve-root)
        fetch
        echo "root file system: $(df --output=size / | tail -1 | tr -d ' ') KiB"
        for number in $(seq 10); do fallocate -l 60M /reserved$number; done
        head -c 100M /dev/zero > /rest ;;
    fill-declared) fetch; dd if=/dev/zero of=/declared/big bs=1M ; df --output=fstype /declared; ls /declared ;;
    hide) fetch; ln -s /etc/shadow /logs/keys.log; mkfifo /logs/pipe; truncate -s 50G /logs/sparse ;;
    wrong) fetch; printf 'X' | dd of="$(first)" conv=notrunc bs=1 ;;
    short) fetch; truncate -s -1 "$(first)" ;;
    missing) fetch; rm "$(first)" ;;
    link) fetch; rm "$(first)"; ln -s /certs/cert.pem "$(first)" ;;
    extra) fetch; echo more > /downloads/more; mkdir /downloads/folder; echo deep > /downloads/folder/deep ;;
    nest) # folders so deep that their names take gigabytes
        fetch
        exec python3 -c '
import os
for place in ("/downloads", "/logs"):
    os.chdir(place)
    for _ in range(16000):
        try:
            os.mkdir("d" * 250)
        except OSError:
            break
        os.chdir("d" * 250)' ;;
    out-of-memory) exec python3 -c 'held = [bytearray(1 << 20) for _ in range(1 << 20)]' ;;
    look)
        find /logs /downloads -printf '%p %m %U %G\n'
        cat /etc/hosts /etc/hostname /etc/resolv.conf
        ip -details link; ip rule; ip -6 rule; ip route show table all; ip -6 route show table all; nft list ruleset
        ;;
    litter-files)
        fetch
        mkdir -p /logs/deep/er /downloads/deep
        ln -s / /logs/root
        touch /logs/deep/er/file '/downloads/deep/a b'
        chown -R 4242 /logs/deep /downloads/deep
        chmod 000 /logs/deep/er /logs/deep /downloads/deep
        ip route add 10.9.9.0/24 dev eth0
        ;;
    litter-mode) fetch; chmod 755 /logs ;;
    litter-hosts) fetch; ! echo 10.9.9.9 server4 >> /etc/hosts ;;
    litter-rules) fetch; ip rule add from 10.9.9.9 lookup 99 ;;
    litter-routes) fetch; ip route add blackhole 10.9.9.0/24 ;;
    litter-filters) fetch; nft add table inet litter ;;
    print-network)
        hostname -I
        ip route show; ip -6 route show
        ethtool -k eth0 | grep -E '^(tx-checksumming|generic-segmentation-offload|tcp-segmentation-offload):'
        getent ahosts server4; getent ahosts server6; getent ahosts server46; getent ahosts sim
        touch /www /certs/new 2>&1
        ;;
    escape)
        ip route get 8.8.8.8
        for target in 172.17.0.1/22 10.0.0.1/53 169.254.169.254/80 193.167.0.1/22; do
            timeout 1 bash -c "exec 3<> /dev/tcp/$target" && echo "reached $target"
        done
        timeout 2 getent hosts example.org && echo "reached a name server"
        ls /var/run/docker.sock
        # The files of this host, which a guest's kernel could mount, and those of the harness
        for attempt in "mount" "unshare -Urm mount" "unshare -Urmpf mount"; do
            $attempt -t hostfs none /mnt && echo "reached the host's files with $attempt"
        done
        ls /host/job /disks /proc/1/root/host/job && echo "reached the harness"
        mknod /tmp/memory c 1 1 && head -c 1 /tmp/memory && echo "reached the memory"
        echo 1 > /proc/sys/kernel/threads-max && echo "reached the kernel's settings"
        ;;
    *) exit 127 ;;
esac
