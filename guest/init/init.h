/* PID 1 of a guest: it makes the world of one job, runs it, and copies out what is left. See ../README.md. */
#ifndef INIT_H
#define INIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define OUT "/host/out" /* folder of the host that takes what a job leaves */

/* One line of the job's description: a word and its fields. */
struct record {
    const char *name;
    int count;
    const char **fields;
};

/* job.c: the description */
void job_load(const char *path);
int job_records(const char *name, struct record **records); /* all of that name; returns how many */
const struct record *job_one(const char *name);              /* the only one; NULL without one */
double job_seconds(const char *name);                        /* a number of `set NAME VALUE`; ends the guest without one */

/* report.c: what init tells the host */
void report(const char *format, ...) __attribute__((format(printf, 1, 2)));
void give_up(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn)); /* a fault of ours */
void power_off(void) __attribute__((noreturn));
double now(void);                                            /* seconds of virtual time since 1970 */
void write_file(const char *path, const void *data, size_t size, int mode);

/* network.c: namespaces, cables, routes */
void network_make(void);
int network_enter(const char *role); /* this process; returns a descriptor of the namespace that it leaves */
void network_return(int before);
int network_namespace(const char *role);

/* roots.c: file systems */
void roots_make(void);
void root_path(char *path, size_t size, const char *role, const char *inside);

/* capture.c: packets of one interface → pcap */
void captures_start(void);
void captures_stop(void);

/* processes.c: what runs beside init */
struct process {
    const char *role;
    const char *kind; /* link, box, server, client */
    const struct record *record;
    int pid, pipe, output;
    uint64_t printed;
    bool started, ended, flooded, stopped, timed_out;
    bool told_flood; /* the link's word that an endpoint brings more than its case needs */
    int code;        /* exit code, 128 + signal */
    double began, end;
};
extern struct process processes[16];
extern int process_count;
void processes_prepare(void);
void process_start(struct process *process);
void process_kill(struct process *process);
void process_terminate(struct process *process, double grace);
void pump(double until, int descriptor); /* until something happened, the time, or `descriptor` is readable */
void pump_for(double seconds);

/* ready.c: waiting for what was started, and answering who waits */
void listeners_make(void);
void send_datagram(const char *role, const char *address, const char *port);
bool accepts(const char *role, int port);
bool negotiates(const char *role, const char *address, const char *text); /* a server, asked once */
bool listens(const struct process *process, int port);

/* tar.c: a folder → one file */
void archive(const char *folder, const char *name, const char *to, uint64_t budget);

#endif
