/* Writes the packets of one interface to a pcap file with nanoseconds, as tcpdump does. Packets are read in batches of 50 ms,
   because a context switch is expensive in a guest. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "init.h"

#define BLOCK (1u << 20)
#define BATCH 128
#define LARGEST 2048 /* bytes of a packet that are read at most */
#define PAUSE 0.05 /* s in which packets gather before they are read */
#define WAITING (64 << 20) /* bytes of the socket's receive buffer */
#define LIMIT (1ull << 30) /* bytes of one capture: a server that floods its interface must not fill the disk */
#define NANOSECONDS 0xa1b23c4du

struct network { /* packets with a source address in this network can't arrive at an interface */
    int family, bytes; /* of the prefix */
    unsigned char prefix[16];
};

struct capture {
    const char *name;
    struct network foreign[4];
    int foreign_count;
    int socket, file, snap, skip_port, pid;
    char *buffer;
    size_t filled;
    uint64_t written;
};

static struct capture captures[8];
static int capture_count;
static volatile sig_atomic_t stopping;

static void stop(int signal) { stopping = signal; }

static void flush(struct capture *c) {
    for (size_t done = 0; done < c->filled;) {
        ssize_t wrote = write(c->file, c->buffer + done, c->filled - done);
        if (wrote < 0) _exit(2);
        done += wrote;
    }
    c->filled = 0;
}

static void put(struct capture *c, const void *data, size_t size) {
    if (c->filled + size > BLOCK) flush(c);
    memcpy(c->buffer + c->filled, data, size);
    c->filled += size;
    c->written += size;
}

/* Whether a frame has TCP from or to the simulator's ready port. */
static bool skipped(const struct capture *c, const unsigned char *frame, unsigned size) {
    unsigned at = size < 54 ? 0 : frame[12] == 8 && !frame[13] && frame[23] == 6 ? 14 + 4 * (frame[14] & 15)
                : frame[12] == 0x86 && frame[13] == 0xdd && frame[20] == 6 ? 54 : 0;
    if (!at || at + 4 > size || !c->skip_port) return false;
    return (frame[at] << 8 | frame[at + 1]) == c->skip_port || (frame[at + 2] << 8 | frame[at + 3]) == c->skip_port;
}

/* Whether an arriving frame has a source address of the other end, or a VLAN tag. The simulator does not forward such a frame,
   so it is no packet of the connection. Captures in lanes leave it out, too (sim/tools/hold-link). */
static bool forged(const struct capture *c, const unsigned char *frame, unsigned size, bool tagged) {
    int type = size < 14 ? 0 : frame[12] << 8 | frame[13];
    int family = type == ETH_P_IP && size >= 34 ? AF_INET : type == ETH_P_IPV6 && size >= 54 ? AF_INET6 : 0;
    if (tagged || type == ETH_P_8021Q || type == ETH_P_8021AD) return c->foreign_count > 0;
    for (int i = 0; i < c->foreign_count; i++) {
        const struct network *net = &c->foreign[i];
        if (net->family == family && !memcmp(frame + (family == AF_INET ? 26 : 22), net->prefix, net->bytes)) return true;
    }
    return false;
}

static void take(struct capture *c, const unsigned char *frame, uint32_t size, const struct timespec *at) {
    uint32_t held = size < LARGEST ? size : LARGEST, kept = held < (unsigned)c->snap ? held : (unsigned)c->snap;
    uint32_t head[4] = {at->tv_sec, at->tv_nsec, kept, size};
    if (skipped(c, frame, held) || c->written + kept > LIMIT) return;
    put(c, head, sizeof head);
    put(c, frame, kept);
}

static void drain(struct capture *c) {
    static unsigned char frames[BATCH][LARGEST];
    static char controls[BATCH][CMSG_SPACE(sizeof(struct timespec)) + CMSG_SPACE(sizeof(struct tpacket_auxdata))];
    struct sockaddr_ll froms[BATCH];
    struct iovec buffers[BATCH];
    struct mmsghdr messages[BATCH];
    int got;
    do {
        for (int i = 0; i < BATCH; i++) {
            buffers[i] = (struct iovec){frames[i], LARGEST};
            messages[i].msg_hdr = (struct msghdr){
                .msg_iov = &buffers[i], .msg_iovlen = 1, .msg_control = controls[i], .msg_controllen = sizeof controls[i],
                .msg_name = &froms[i], .msg_namelen = sizeof froms[i],
            };
        }
        got = recvmmsg(c->socket, messages, BATCH, MSG_DONTWAIT | MSG_TRUNC, NULL);
        for (int i = 0; i < got; i++) {
            struct msghdr *head = &messages[i].msg_hdr;
            struct timespec at = {0};
            struct tpacket_auxdata more = {0};
            for (struct cmsghdr *control = CMSG_FIRSTHDR(head); control; control = CMSG_NXTHDR(head, control)) {
                if (control->cmsg_type == SCM_TIMESTAMPNS) memcpy(&at, CMSG_DATA(control), sizeof at);
                if (control->cmsg_level == SOL_PACKET) memcpy(&more, CMSG_DATA(control), sizeof more);
            }
            unsigned size = messages[i].msg_len < LARGEST ? messages[i].msg_len : LARGEST;
            bool incoming = froms[i].sll_pkttype != PACKET_OUTGOING;
            if (!incoming || !forged(c, frames[i], size, more.tp_status & TP_STATUS_VLAN_VALID))
                take(c, frames[i], messages[i].msg_len, &at);
        }
    } while (got == BATCH);
}

static void run(struct capture *c) {
    const struct { uint32_t magic; uint16_t major, minor; uint32_t zone, accuracy, snap, type; } head = {
        NANOSECONDS, 2, 4, 0, 0, c->snap, 1,
    };
    const struct timespec pause = {.tv_nsec = (long)(PAUSE * 1e9)};
    struct tpacket_stats statistics = {0};
    socklen_t size = sizeof statistics;
    sigset_t none;
    sigemptyset(&none);
    put(c, &head, sizeof head);
    while (!stopping) {
        struct pollfd poll = {.fd = c->socket, .events = POLLIN};
        if (ppoll(&poll, 1, NULL, &none) > 0) nanosleep(&pause, NULL);
        drain(c);
    }
    drain(c);
    flush(c);
    if (getsockopt(c->socket, SOL_PACKET, PACKET_STATISTICS, &statistics, &size)) _exit(3);
    report("dropped %s %u", c->name, statistics.tp_drops);
    _exit(0);
}

static void read_network(struct network *net, const char *text) { /* address/bits, bits a multiple of 8 */
    char address[64];
    snprintf(address, sizeof address, "%s", text);
    char *slash = strchr(address, '/');
    if (!slash || atoi(slash + 1) % 8) give_up("%s is no network", text);
    *slash = 0;
    net->bytes = atoi(slash + 1) / 8;
    net->family = strchr(address, ':') ? AF_INET6 : AF_INET;
    if (inet_pton(net->family, address, net->prefix) != 1) give_up("%s is no network", text);
}

/* Fields: namespace, interface, file, bytes kept of a packet, port that is left out, networks that can't be a source address */
static void begin(struct capture *c, const char **field, int fields) {
    int one = 1, waiting = WAITING;
    char path[256];
    int before = network_enter(field[0]);
    snprintf(path, sizeof path, OUT "/%s", field[2]);
    *c = (struct capture){.name = field[2], .snap = atoi(field[3]), .skip_port = atoi(field[4])};
    for (int i = 5; i < fields && c->foreign_count < (int)COUNT(c->foreign); i++)
        read_network(&c->foreign[c->foreign_count++], field[i]);
    c->file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    c->socket = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
    c->buffer = malloc(BLOCK);
    struct sockaddr_ll to = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL)};
    to.sll_ifindex = if_nametoindex(field[1]);
    if (c->file < 0 || c->socket < 0 || !c->buffer || setsockopt(c->socket, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one) ||
        setsockopt(c->socket, SOL_PACKET, PACKET_AUXDATA, &one, sizeof one) ||
        setsockopt(c->socket, SOL_SOCKET, SO_RCVBUFFORCE, &waiting, sizeof waiting) ||
        bind(c->socket, (void *)&to, sizeof to))
        give_up("the capture %s can't begin", c->name);
    network_return(before);
    c->pid = fork();
    if (c->pid == 0) {
        prctl(PR_SET_NAME, "capture");
        signal(SIGTERM, stop);
        run(c);
    }
    if (c->pid < 0) give_up("the capture %s can't begin", c->name);
}

void captures_start(void) {
    struct record *records;
    sigset_t term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    sigprocmask(SIG_BLOCK, &term, NULL); /* captures handle it only while they wait */
    capture_count = job_records("capture", &records);
    if (capture_count > (int)COUNT(captures)) give_up("there are too many captures");
    for (int i = 0; i < capture_count; i++) begin(&captures[i], records[i].fields, records[i].count);
}

void captures_stop(void) {
    for (int i = 0; i < capture_count; i++) kill(captures[i].pid, SIGTERM);
    for (int i = 0; i < capture_count; i++) {
        int status = -1;
        while (waitpid(captures[i].pid, &status, 0) < 0 && errno == EINTR) continue;
        if (status) report("error captures-died - The capture %s ended with %d.", captures[i].name, status);
    }
}
