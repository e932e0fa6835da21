/* The first process of a guest. It runs the stages of a job in order. All time-outs are seconds of the guest's own clock. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/klog.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "init.h"

#define LINK_READY 10.0
#define SERVER_READY 10.0
#define SERVER_GRACE 10.0
#define BOX_READY 30.0
#define BOX_GRACE 2.0
#define LINK_GRACE 10.0
#define CLIENT_AFTER_SERVER 5.0 /* s in which a client may end after its server has ended */
#define LOOK 0.01

static bool failed; /* the harness has failed: nothing more is started, but the files are collected */
static double stage_began;

/* `role`: the process whose last lines of output explain the failure; "-": none. */
static void fail(const char *code, const char *role, const char *why) {
    if (!failed) report("error %s %s %s", code, role, why);
    failed = true;
}

static void stage(const char *name) {
    report("stage %s %.9f", name, now() - stage_began);
    stage_began = now();
}

static void mount_one(const char *type, const char *at, const char *data) {
    mkdir(at, 0755);
    if (mount(type, at, type, 0, data)) give_up("%s can't be mounted", at);
}

/* The kernel does not reclaim memory that was used within the last minute; it kills a process that needs more memory than there
   is. Otherwise the kernel would drop and read the programs' pages again and again, while no virtual time passes. */
static void set_least_residence(void) {
    int file = open("/sys/kernel/mm/lru_gen/min_ttl_ms", O_WRONLY | O_CLOEXEC);
    if (file < 0 || dprintf(file, "60000") < 0) give_up("the least residence of memory can't be set");
    close(file);
}

/* In lanes, the engine forbids endpoints these calls. */
static void forbid(const char *setting, const char *value) {
    int file = open(setting, O_WRONLY | O_CLOEXEC);
    if (file < 0 || dprintf(file, "%s", value) < 0) give_up("%s can't be set", setting);
    close(file);
}

static void make_world(void) {
    mount_one("proc", "/proc", NULL);
    mount_one("sysfs", "/sys", NULL);
    mount_one("devtmpfs", "/dev", NULL);
    mount_one("hostfs", "/host", "/proc/self/cwd"); /* the folder in which the kernel's process was started */
    job_load("/host/job");
    stage_began = now();
    report("began %.9f", stage_began);
    int limit = open("/proc/sys/kernel/threads-max", O_WRONLY | O_CLOEXEC);
    if (limit < 0 || dprintf(limit, "%.0f", job_seconds("threads")) < 0) give_up("threads can't be limited");
    close(limit);
    set_least_residence();
    forbid("/proc/sys/user/max_user_namespaces", "0");
    network_make();
    listeners_make();
    roots_make();
    processes_prepare();
    stage("world");
}

static struct process *of_kind(const char *kind, int number) {
    for (int i = 0; i < process_count; i++)
        if (!strcmp(processes[i].kind, kind) && number-- == 0) return &processes[i];
    return NULL;
}

static bool link_died(void) {
    for (int i = 0; i < process_count; i++)
        if (!strcmp(processes[i].kind, "link") && processes[i].ended) return true;
    return false;
}

static void start_links(void) {
    double until = now() + LINK_READY;
    int port = (int)job_seconds("ready_port");
    struct process *link;
    captures_start();
    for (int i = 0; (link = of_kind("link", i)); i++) process_start(link);
    for (int i = 0; (link = of_kind("link", i)); i++) {
        while (!accepts(link->role, port) && !link->ended && now() < until) pump(now() + LOOK, -1);
        if (link->ended || now() >= until) fail("link-not-ready", link->role, "The simulator did not open the link.");
        else process_prefer(link);
    }
    stage("link");
}

static void start_boxes(void) {
    struct process *box;
    double until = now() + BOX_READY;
    const struct record *first = job_one("first-packet"); /* namespace, address, port */
    if (failed) return;
    if (first) send_datagram(first->fields[0], first->fields[1], first->fields[2]);
    if (!of_kind("box", 0)) return;
    for (int i = 0; (box = of_kind("box", i)); i++) process_start(box);
    for (int i = 0; (box = of_kind("box", i)) && !failed; i++) {
        char path[256];
        root_path(path, sizeof path, box->role, "/logs/ready");
        while (access(path, F_OK) && !box->ended && now() < until) pump(now() + LOOK, -1);
        if (access(path, F_OK))
            fail("box-not-ready", box->role, box->ended ? "A box of the middlebox ended." : "A box was not ready in time.");
    }
    stage("middlebox-ready");
}

/* Returns true when the server is ready, or when its readiness is not checked and it runs. */
static bool start_server(struct process *server) {
    const struct record *ready = job_one("ready"); /* quic or tcp, namespace, address, port */
    double until = now() + SERVER_READY;
    bool answered = false;
    if (failed || !server) return false;
    process_start(server);
    if (!ready) return !server->ended;
    bool quic = !strcmp(ready->fields[0], "quic");
    while (!answered && !server->ended && now() < until) {
        answered = quic ? negotiates(ready->fields[1], ready->fields[2], ready->fields[3])
                        : listens(server, atoi(ready->fields[3]));
        if (!answered && !quic) pump(now() + LOOK, -1);
    }
    report("ready %d", answered);
    stage("server-ready");
    if (!answered && !server->ended) {
        char command[128], path[64];
        static const char *const tables[] = {"udp", "udp6"};
        for (size_t i = 0; i < COUNT(tables); i++) {
            static char text[1 << 16];
            snprintf(path, sizeof path, "/proc/%d/net/%s", server->pid, tables[i]);
            snprintf(command, sizeof command, OUT "/server.%s", tables[i]);
            int file = open(path, O_RDONLY | O_CLOEXEC);
            ssize_t size = 0, got;
            while (file >= 0 && (got = read(file, text + size, sizeof text - size)) > 0) size += got;
            if (file >= 0) close(file);
            write_file(command, text, size, 0644);
        }
    }
    if (!answered && job_seconds("own_server")) fail("origin-not-ready", server->role, "The origin did not listen.");
    return answered;
}

/* A process of the harness that has ended before the client; NULL when all of them run. */
static const struct process *ended_early(void) {
    for (int i = 0; i < process_count; i++) {
        bool own = !strcmp(processes[i].kind, "box") || (!strcmp(processes[i].kind, "server") && job_seconds("own_server"));
        if (own && processes[i].ended) return &processes[i];
    }
    return NULL;
}

static bool flooded(void) {
    for (int i = 0; i < process_count; i++)
        if (processes[i].reported_flood) return true;
    return false;
}

static void run_client(struct process *client, struct process *server) {
    double deadline = now() + job_seconds("timeout");
    const struct process *early;
    process_start(client);
    while (!client->ended && !server->ended && !link_died() && !flooded() && !ended_early() && now() < deadline)
        pump(deadline, -1);
    if (server->ended && !ended_early()) {
        double grace = now() + CLIENT_AFTER_SERVER + job_seconds("one_way_sum");
        if (grace > deadline) grace = deadline; /* packets that the server sent before its end may still arrive */
        while (!client->ended && !link_died() && !ended_early() && now() < grace) pump(grace, -1);
    }
    if (link_died()) fail("link-died", "-", "A simulator ended early.");
    if (!client->ended) {
        if ((early = ended_early())) {
            char code[64];
            snprintf(code, sizeof code, "%s-ended", early->role);
            fail(code, early->role, "It ended before the client did.");
        }
        if (flooded()) report("flooded 1");
        client->stopped = failed || flooded() || server->ended;
        client->timed_out = !client->stopped;
        process_kill(client);
        if (flooded() && !server->ended) {
            server->stopped = true;
            process_kill(server);
        }
    }
    report("transfer %.9f", client->end - client->began);
    stage("transfer");
    pump_for(job_seconds("last_packets")); /* until the client's last packet has passed all captures */
}

static void stop_links(void) {
    struct process *link;
    /* Waiting takes no real time: the link delivers the endpoints' last packets, and carries the kernels' answers to them. */
    pump_for(job_seconds("one_way_sum") + job_seconds("last_packets"));
    captures_stop();
    for (int i = 0; (link = of_kind("link", i)); i++) {
        bool early = link->ended;
        process_terminate(link, LINK_GRACE);
        if (link->started && (early || link->code)) fail("link-failed", link->role, "The simulator did not end properly.");
    }
    stage("captures");
}

static void collect(void) {
    uint64_t budget = (uint64_t)job_seconds("copy_budget");
    struct record *records;
    int count = job_records("tmpfs", &records);
    for (int i = 0; i < count; i++) { /* role, path, bytes */
        char folder[256], file[256];
        root_path(folder, sizeof folder, records[i].fields[0], records[i].fields[1]);
        snprintf(file, sizeof file, OUT "/%s-%s.tar", records[i].fields[0], records[i].fields[1] + 1);
        archive(folder, records[i].fields[1] + 1, file, budget);
    }
    for (int i = 0; i < process_count; i++) {
        const struct process *p = &processes[i];
        report("process %s started=%d ended=%d code=%d began=%.9f end=%.9f stopped=%d timed_out=%d flooded=%d printed=%llu",
               p->role, p->started, p->ended, p->code, p->began, p->end, p->stopped, p->timed_out, p->flooded,
               (unsigned long long)p->printed);
    }
}

static void report_memory(void) {
    static char messages[1 << 18];
    char line[128];
    unsigned long long value;
    int kills = 0, size = klogctl(3 /* SYSLOG_ACTION_READ_ALL */, messages, sizeof messages - 1);
    messages[size > 0 ? size : 0] = 0;
    for (const char *at = messages; (at = strstr(at, "Out of memory: Killed process")); at++) kills++;
    report("oom_kills %d", kills);
    FILE *file = fopen("/proc/meminfo", "re");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %llu", &value) == 1) report("memory_left %llu", value * 1024);
    if (file) fclose(file);
}

int main(void) {
    make_world();
    struct process *server = of_kind("server", 0), *client = of_kind("client", 0), *box;
    start_links();
    start_boxes();
    if (start_server(server) && client) run_client(client, server);
    if (server) process_terminate(server, SERVER_GRACE);
    stage("server-stop");
    for (int i = 0; (box = of_kind("box", i)); i++) process_terminate(box, BOX_GRACE);
    stop_links();
    collect();
    report_memory();
    stage("collect");
    report("done %.9f", now());
    power_off();
}
