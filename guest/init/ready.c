/* Checks whether processes are ready. The packets of these checks stay inside a namespace, so they cross no link. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "init.h"

#define INTERVAL 0.05 /* s: time for an answer */
#define SMALLEST_INITIAL 1200 /* bytes of a datagram that a server must answer, RFC 9000 §14.1 */
#define CONNECTION_ID 8

bool accepts(const char *role, int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int before = network_enter(role), file = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool reached = file >= 0 && connect(file, (void *)&to, sizeof to) == 0;
    close(file);
    network_return(before);
    return reached;
}

static bool is_version_negotiation(const uint8_t *answer, ssize_t size, const uint8_t *ids) {
    /* RFC 9000 §17.2.1: version 0, and our two connection IDs in reverse order */
    const uint8_t *source = ids + 1 + CONNECTION_ID;
    return size >= 5 + 2 * (1 + CONNECTION_ID) && answer[0] & 0x80 && !memcmp(answer + 1, "\0\0\0\0", 4) &&
           !memcmp(answer + 5, source, 1 + CONNECTION_ID) &&
           !memcmp(answer + 5 + 1 + CONNECTION_ID, ids, 1 + CONNECTION_ID);
}

/* Sends a datagram that begins like an Initial packet of an unknown version (0x1a2a3a4a, RFC 9000 §15), and waits for the
   answer. */
bool negotiates(const char *role, const char *address, const char *port) {
    uint8_t question[SMALLEST_INITIAL] = {0xC0, 0x1A, 0x2A, 0x3A, 0x4A, CONNECTION_ID}, answer[2048];
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    double until = now() + INTERVAL;
    bool answered = false;
    question[6 + CONNECTION_ID] = CONNECTION_ID;
    if (getrandom(question + 6, CONNECTION_ID, 0) < 0 || getrandom(question + 7 + CONNECTION_ID, CONNECTION_ID, 0) < 0)
        give_up("random numbers can't be read");
    inet_pton(AF_INET, address, &to.sin_addr);
    int before = network_enter(role), file = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (connect(file, (void *)&to, sizeof to) == 0 && send(file, question, sizeof question, 0) > 0) {
        while (!answered && now() < until) {
            ssize_t size;
            pump(until, file);
            while ((size = recv(file, answer, sizeof answer, 0)) > 0)
                answered = answered || is_version_negotiation(answer, size, question + 5);
            if (size < 0 && errno != EAGAIN) break; /* refused: no server listens yet */
        }
    }
    close(file);
    network_return(before);
    if (!answered && now() < until) pump_for(until - now());
    return answered;
}

/* Sends a datagram of one byte. The times of impairments count from the first UDP packet of a segment. */
void send_datagram(const char *role, const char *address, const char *port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    inet_pton(AF_INET, address, &to.sin_addr);
    int before = network_enter(role), file = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (sendto(file, "\n", 1, 0, (void *)&to, sizeof to) != 1) give_up("the first packet of the segment can't be sent");
    close(file);
    network_return(before);
}

/* Listens on ports that clients use to see that the link is open, in namespaces without a simulator. Fields: namespace, port. */
void listeners_make(void) {
    struct record *records;
    int count = job_records("listen", &records), zero = 0;
    for (int i = 0; i < count; i++) {
        struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_port = htons(atoi(records[i].fields[1]))};
        int before = network_enter(records[i].fields[0]), file = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
        /* The kernel completes connections, and they stay in the queue until the guest ends. Clients need no more than that. */
        if (setsockopt(file, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero) || bind(file, (void *)&at, sizeof at) ||
            listen(file, 64))
            give_up("port %s can't be listened on", records[i].fields[1]);
        network_return(before);
    }
}

/* Whether a process in the namespace of `p` listens on TCP `port`. */
bool listens(const struct process *p, int port) {
    static const char *const tables[] = {"tcp", "tcp6"};
    for (size_t i = 0; i < COUNT(tables); i++) {
        char path[64], line[512], local[64], remote[64];
        unsigned state, found;
        snprintf(path, sizeof path, "/proc/%d/net/%s", p->pid, tables[i]);
        FILE *table = fopen(path, "re");
        while (table && fgets(line, sizeof line, table))
            if (sscanf(line, " %*d: %63s %63s %x", local, remote, &state) == 3 && state == 0x0A &&
                sscanf(strrchr(local, ':') + 1, "%x", &found) == 1 && found == (unsigned)port) {
                fclose(table);
                return true;
            }
        if (table) fclose(table);
    }
    return false;
}
