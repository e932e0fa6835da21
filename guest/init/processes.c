/* Runs the simulators and the containers of a job: their start, output, limits and end. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "init.h"

#define NOFILE 1048576 /* the limit of the engine's containers */

struct process processes[16];
int process_count;
static int children;

/* The capabilities of containers in lanes (runner/places/experiment.py). */
static const int capabilities[] = {
    CAP_NET_BIND_SERVICE, CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_KILL, CAP_SETGID, CAP_SETUID, CAP_NET_ADMIN,
    CAP_NET_RAW,
};

/* Fields of a record `process`: role, kind, namespace, user, group, folder, number of variables, variables, command. */
enum { ROLE, KIND, NAMESPACE, USER, GROUP, FOLDER, VARIABLES, FIRST };

void processes_prepare(void) {
    struct record *records;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, NULL);
    children = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    process_count = job_records("process", &records);
    if (children < 0 || process_count > (int)COUNT(processes)) give_up("there are too many processes");
    for (int i = 0; i < process_count; i++) {
        char path[256];
        struct process *p = &processes[i];
        *p = (struct process){.role = records[i].fields[ROLE], .kind = records[i].fields[KIND], .record = &records[i]};
        p->pipe = -1;
        snprintf(path, sizeof path, OUT "/%s.output", p->role);
        p->output = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        if (p->output < 0) give_up("%s can't be written", path);
    }
}

static void drop_rights(const struct process *p) {
    for (int right = 0; right <= CAP_LAST_CAP; right++) {
        bool kept = false;
        for (size_t i = 0; i < COUNT(capabilities); i++) kept |= capabilities[i] == right;
        if (!kept) prctl(PR_CAPBSET_DROP, right);
    }
    gid_t group = atoi(p->record->fields[GROUP]);
    uid_t user = atoi(p->record->fields[USER]);
    if (setgroups(1, &group) || setgid(group) || setuid(user)) _exit(126);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

static void limit(int what, rlim_t value) {
    struct rlimit limits = {value, value};
    setrlimit(what, &limits);
}

/* Enters the file system of a container: its root folder, its own /proc, the /sys of its network. Settings of the kernel are
   read-only. */
static void enter_root(const struct process *p) {
    char root[256];
    root_path(root, sizeof root, p->role, "");
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) || chdir(root) || mount(".", "/", NULL, MS_MOVE, NULL) ||
        chroot(".") || chdir("/"))
        _exit(126);
    if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL)) _exit(126);
    if (mount("/proc/sys", "/proc/sys", NULL, MS_BIND, NULL) == 0)
        mount(NULL, "/proc/sys", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL);
    mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY, NULL);
    mkdir("/dev/mqueue", 0755);
    mount("mqueue", "/dev/mqueue", "mqueue", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
}

static void run(const struct process *p, int output) {
    const char **field = p->record->fields;
    int variables = atoi(field[VARIABLES]), none = open("/dev/null", O_RDONLY);
    bool container = strcmp(p->kind, "link");
    sigset_t empty;
    sigemptyset(&empty);
    sigprocmask(SIG_SETMASK, &empty, NULL);
    sethostname(p->role, strlen(p->role));
    dup2(none, 0);
    dup2(output, 1);
    dup2(output, 2);
    enter_root(p);
    if (container) {
        limit(RLIMIT_NOFILE, NOFILE);
        limit(RLIMIT_CORE, 0);
        limit(RLIMIT_FSIZE, (rlim_t)job_seconds("largest_file"));
        drop_rights(p);
    }
    clearenv();
    for (int i = 0; i < variables; i++) putenv((char *)field[FIRST + i]);
    if (chdir(field[FOLDER])) {
        dprintf(2, "bentpipe: there is no folder %s\n", field[FOLDER]);
        _exit(127);
    }
    execvp(field[FIRST + variables], (char *const *)field + FIRST + variables);
    dprintf(2, "bentpipe: %s can't be started: %s\n", field[FIRST + variables], strerror(errno));
    _exit(125); /* the engine's code for a container that can't be started */
}

void process_start(struct process *p) {
    int ends[2];
    unsigned long flags = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID;
    if (pipe2(ends, O_CLOEXEC)) give_up("there is no pipe");
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    int before = network_enter(p->record->fields[NAMESPACE]);
    p->began = now();
    p->pid = syscall(SYS_clone, flags | SIGCHLD, 0, NULL, NULL, 0);
    if (p->pid == 0) run(p, ends[1]);
    network_return(before);
    close(ends[1]);
    if (p->pid < 0) give_up("the %s can't be started", p->role);
    p->pipe = ends[0];
    p->started = true;
}

/* Lets all threads of a simulator run before any other process, as a link does that is a machine of its own. Otherwise an
   endpoint that reads the clock in a loop keeps the CPU until the next tick, and its packets are up to 10 ms late. */
void process_prefer(const struct process *p) {
    const struct sched_param first = {.sched_priority = 1};
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", p->pid);
    DIR *threads = opendir(path);
    if (!threads) give_up("the threads of the %s can't be listed", p->role);
    for (struct dirent *thread; (thread = readdir(threads));)
        if (thread->d_name[0] != '.' && sched_setscheduler(atoi(thread->d_name), SCHED_FIFO, &first))
            give_up("the %s gets no priority: %s", p->role, strerror(errno));
    closedir(threads);
}

static void read_output(struct process *p) {
    static char block[1 << 16];
    ssize_t got;
    while (p->pipe >= 0 && (got = read(p->pipe, block, sizeof block)) != -1) {
        if (got == 0) {
            close(p->pipe);
            p->pipe = -1;
            return;
        }
        p->printed += got;
        if (p->printed <= (uint64_t)job_seconds("largest_output")) {
            if (write(p->output, block, got) < 0) give_up("the output of the %s can't be written", p->role);
        } else if (!p->flooded && strcmp(p->kind, "link")) {
            p->flooded = true;
            if (!p->ended) kill(p->pid, SIGKILL);
        }
        if (!strcmp(p->kind, "link") && memmem(block, got, "link flooded", 12)) p->reported_flood = true;
    }
}

static void reap(void) {
    struct signalfd_siginfo about;
    int status, pid;
    while (read(children, &about, sizeof about) > 0) continue;
    for (int i = 0; i < process_count; i++) {
        struct process *p = &processes[i];
        if (!p->started || p->ended || (pid = waitpid(p->pid, &status, WNOHANG)) != p->pid) continue;
        p->end = now();
        p->code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        read_output(p);
        p->ended = true;
    }
}

/* Returns after output or the end of a process, when `descriptor` is readable, or at the time `until`. */
void pump(double until, int descriptor) {
    struct pollfd polled[COUNT(processes) + 2];
    int count = 0;
    polled[count++] = (struct pollfd){.fd = children, .events = POLLIN};
    if (descriptor >= 0) polled[count++] = (struct pollfd){.fd = descriptor, .events = POLLIN};
    for (int i = 0; i < process_count; i++)
        if (processes[i].pipe >= 0) polled[count++] = (struct pollfd){.fd = processes[i].pipe, .events = POLLIN};
    double left = until - now();
    if (left < 0) left = 0;
    struct timespec wait = {.tv_sec = (time_t)left, .tv_nsec = (long)((left - (time_t)left) * 1e9)};
    ppoll(polled, count, &wait, NULL);
    for (int i = 0; i < process_count; i++) read_output(&processes[i]);
    reap();
}

void pump_for(double seconds) {
    double until = now() + seconds;
    while (now() < until) pump(until, -1);
}

void process_kill(struct process *p) {
    double until = now() + 10;
    if (!p->started || p->ended) return;
    kill(p->pid, SIGKILL);
    while (!p->ended && now() < until) pump(until, -1);
}

/* Sends SIGTERM, and SIGKILL after `grace` seconds. Sets `stopped` when the process was still running. */
void process_terminate(struct process *p, double grace) {
    double until = now() + grace;
    if (!p->started || p->ended) return;
    p->stopped = true;
    kill(p->pid, SIGTERM);
    while (!p->ended && now() < until) pump(until, -1);
    process_kill(p);
}
