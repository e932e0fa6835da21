/* Makes network namespaces, the cables between them, addresses and routes, as runner/places/lane_job.py does for lanes. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/ethtool.h>
#include <linux/if_addr.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <linux/veth.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "init.h"

/* The two ends of a cable have different interface numbers. Linux takes an interface with the same number as its peer for one
   that depends on no other interface, and checks the carrier of such an interface at most once a second. */
#define FIRST_INDEX 10

static struct { const char *role; int file; } namespaces[16];
static int namespace_count;

static int open_current(void) {
    int file = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (file < 0) give_up("there are no network namespaces");
    return file;
}

int network_namespace(const char *role) {
    for (int i = 0; i < namespace_count; i++)
        if (!strcmp(namespaces[i].role, role)) return namespaces[i].file;
    give_up("the job has no namespace %s", role);
}

int network_enter(const char *role) {
    int before = open_current();
    if (setns(network_namespace(role), CLONE_NEWNET)) give_up("the namespace %s can't be entered", role);
    return before;
}

void network_return(int before) {
    if (setns(before, CLONE_NEWNET)) give_up("a namespace can't be left");
    close(before);
}

/* --- netlink messages --- */

struct message {
    struct nlmsghdr header;
    char data[1024];
};

static void *extend(struct message *m, const void *data, size_t size) {
    char *at = (char *)m + NLMSG_ALIGN(m->header.nlmsg_len);
    if (size) memcpy(at, data, size);
    m->header.nlmsg_len = NLMSG_ALIGN(m->header.nlmsg_len) + size;
    return at;
}

static struct rtattr *attribute(struct message *m, int type, const void *data, size_t size) {
    struct rtattr head = {.rta_len = RTA_LENGTH(size), .rta_type = type};
    struct rtattr *at = extend(m, &head, sizeof head);
    extend(m, data, size);
    return at;
}

static void close_attribute(struct message *m, struct rtattr *begun) {
    begun->rta_len = (char *)m + NLMSG_ALIGN(m->header.nlmsg_len) - (char *)begun;
}

static void ask(struct message *m, const char *what) {
    int file = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    struct { struct nlmsghdr header; struct nlmsgerr error; char rest[512]; } answer;
    m->header.nlmsg_flags |= NLM_F_REQUEST | NLM_F_ACK;
    if (file < 0 || send(file, m, m->header.nlmsg_len, 0) < 0 || recv(file, &answer, sizeof answer, 0) < 0)
        give_up("%s: netlink doesn't answer", what);
    close(file);
    if (answer.error.error) {
        errno = -answer.error.error;
        give_up("%s", what);
    }
}

static struct message link_message(int type, int flags, struct ifinfomsg about) {
    struct message m = {.header = {.nlmsg_len = NLMSG_LENGTH(0), .nlmsg_type = type, .nlmsg_flags = flags}};
    extend(&m, &about, sizeof about);
    return m;
}

static void end_attributes(struct message *m, const char **end) { /* role, name, MAC, IPv4, IPv6 */
    unsigned char mac[6];
    int file = network_namespace(end[0]);
    if (sscanf(end[2], "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", &mac[0], &mac[1], &mac[2], &mac[3], &mac[4], &mac[5]) != 6)
        give_up("%s is no MAC address", end[2]);
    attribute(m, IFLA_IFNAME, end[1], strlen(end[1]) + 1);
    attribute(m, IFLA_ADDRESS, mac, sizeof mac);
    attribute(m, IFLA_NET_NS_FD, &file, sizeof file);
}

static void make_cable(const char **one, const char **other, int index) {
    struct message m = link_message(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, (struct ifinfomsg){.ifi_index = index});
    struct ifinfomsg peer = {.ifi_index = index + 1};
    end_attributes(&m, one);
    struct rtattr *info = attribute(&m, IFLA_LINKINFO, NULL, 0);
    attribute(&m, IFLA_INFO_KIND, "veth", 5);
    struct rtattr *data = attribute(&m, IFLA_INFO_DATA, NULL, 0);
    struct rtattr *far = attribute(&m, VETH_INFO_PEER, &peer, sizeof peer);
    end_attributes(&m, other);
    close_attribute(&m, far);
    close_attribute(&m, data);
    close_attribute(&m, info);
    ask(&m, "a cable can't be made");
}

static void set_up(int index) {
    struct ifinfomsg about = {.ifi_index = index, .ifi_flags = IFF_UP, .ifi_change = IFF_UP};
    struct message m = link_message(RTM_NEWLINK, 0, about);
    ask(&m, "an interface can't be set up");
}

static int parse(const char *text, unsigned char *address) { /* returns the family */
    int family = strchr(text, ':') ? AF_INET6 : AF_INET;
    if (inet_pton(family, text, address) != 1) give_up("%s is no address", text);
    return family;
}

static size_t length(int family) { return family == AF_INET6 ? 16 : 4; }

static void add_address(const char *text, int prefix, int index) {
    unsigned char address[16];
    int family = parse(text, address);
    struct ifaddrmsg about = {.ifa_family = family, .ifa_prefixlen = prefix, .ifa_index = index};
    about.ifa_flags = family == AF_INET6 ? IFA_F_NODAD : 0;
    struct message m = {.header = {.nlmsg_len = NLMSG_LENGTH(0), .nlmsg_type = RTM_NEWADDR}};
    m.header.nlmsg_flags = NLM_F_CREATE | NLM_F_EXCL;
    extend(&m, &about, sizeof about);
    attribute(&m, IFA_LOCAL, address, length(family));
    attribute(&m, IFA_ADDRESS, address, length(family));
    ask(&m, "an address can't be given");
}

/* The simulator forwards raw frames: each frame must contain its checksum, and only one datagram. */
static void switch_offloads_off(const char *name) {
    static const unsigned commands[] = {ETHTOOL_STXCSUM, ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_SGRO};
    int file = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    for (size_t i = 0; i < COUNT(commands); i++) {
        struct ethtool_value value = {.cmd = commands[i]};
        struct ifreq asked = {.ifr_data = (char *)&value};
        snprintf(asked.ifr_name, sizeof asked.ifr_name, "%s", name);
        if (ioctl(file, SIOCETHTOOL, &asked)) give_up("an offload of %s can't be switched off", name);
    }
    close(file);
}

static void set_end_up(const char **end, int index) {
    int before = network_enter(end[0]);
    switch_offloads_off(end[1]);
    add_address(end[3], 24, index);
    add_address(end[4], 64, index);
    set_up(index);
    network_return(before);
}

/* Fields: role, add or change, network, gateway, interface, congestion controller. The last three may be empty. */
static void make_route(const char **field) {
    char network[64];
    unsigned char to[16], via[16];
    snprintf(network, sizeof network, "%s", field[2]);
    char *slash = strchr(network, '/');
    if (!slash) give_up("%s is no network", field[2]);
    *slash = 0;
    int family = parse(network, to), before = network_enter(field[0]);
    struct rtmsg about = {
        .rtm_family = family, .rtm_dst_len = atoi(slash + 1), .rtm_table = RT_TABLE_MAIN, .rtm_type = RTN_UNICAST,
        .rtm_protocol = RTPROT_BOOT, .rtm_scope = *field[3] ? RT_SCOPE_UNIVERSE : RT_SCOPE_LINK,
    };
    struct message m = {.header = {.nlmsg_len = NLMSG_LENGTH(0), .nlmsg_type = RTM_NEWROUTE}};
    m.header.nlmsg_flags = NLM_F_CREATE | (strcmp(field[1], "change") ? NLM_F_EXCL : NLM_F_REPLACE);
    if (!strcmp(field[1], "change")) about.rtm_protocol = RTPROT_KERNEL;
    extend(&m, &about, sizeof about);
    attribute(&m, RTA_DST, to, length(family));
    if (*field[3] && parse(field[3], via) == family) attribute(&m, RTA_GATEWAY, via, length(family));
    if (*field[4]) {
        int index = if_nametoindex(field[4]);
        attribute(&m, RTA_OIF, &index, sizeof index);
    }
    if (*field[5]) {
        struct rtattr *metrics = attribute(&m, RTA_METRICS, NULL, 0);
        attribute(&m, RTAX_CC_ALGO, field[5], strlen(field[5]) + 1);
        close_attribute(&m, metrics);
    }
    ask(&m, "a route can't be made");
    network_return(before);
}

static void set_system(const char *setting) { /* name=value, dots as slashes */
    char path[256];
    const char *value = strchr(setting, '=');
    int length_of_name = value ? (int)(value - setting) : 0;
    snprintf(path, sizeof path, "/proc/sys/%.*s", length_of_name, setting);
    for (char *at = path + 10; *at; at++)
        if (*at == '.') *at = '/';
    int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0 || !value || write(file, value + 1, strlen(value + 1)) < 0) give_up("%s can't be set", setting);
    close(file);
}

void network_make(void) {
    struct record *records;
    int host = open_current();
    int count = job_records("system", &records);
    for (int i = 0; i < count; i++) set_system(records[i].fields[0]);
    count = job_records("namespace", &records);
    for (int i = 0; i < count; i++) {
        if (namespace_count == COUNT(namespaces) || unshare(CLONE_NEWNET)) give_up("a namespace can't be made");
        namespaces[namespace_count].role = records[i].fields[0];
        namespaces[namespace_count++].file = open_current();
        for (int k = 1; k < records[i].count; k++) set_system(records[i].fields[k]);
        set_up(1);
    }
    network_return(host);
    count = job_records("cable", &records);
    for (int i = 0; i < count; i++) {
        int index = FIRST_INDEX + 2 * i;
        make_cable(records[i].fields, records[i].fields + 5, index);
        set_end_up(records[i].fields, index);
        set_end_up(records[i].fields + 5, index + 1);
    }
    count = job_records("route", &records);
    for (int i = 0; i < count; i++) make_route(records[i].fields);
}
