/* The first process of a guest. It prepares and runs one job, and writes the job's files for the host. See ../README.md. */
#ifndef INIT_H
#define INIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define OUT "/host/out" /* folder of the host for the files of the job */

/* One line of the job's description: a word and its fields. */
struct record {
    const char *name;
    int count;
    const char **fields;
};

/* job.c: the description */
void job_load(const char *path);
int job_records(const char *name, struct record **records); /* all records of this name; returns their number */
const struct record *job_one(const char *name);              /* the first record of this name; NULL: there is none */
double job_seconds(const char *name);                        /* the VALUE of `set NAME VALUE`; without it the guest ends */

/* report.c: messages of init to the host */
void report(const char *format, ...) __attribute__((format(printf, 1, 2)));
void give_up(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn)); /* ends the guest: an error of the harness */
void power_off(void) __attribute__((noreturn));
double now(void);                                            /* seconds of virtual time since 1970 */
void write_file(const char *path, const void *data, size_t size, int mode);

/* network.c: namespaces, cables, routes */
void network_make(void);
int network_enter(const char *role); /* moves this process; returns a descriptor of the namespace that it left */
void network_return(int before);
int network_namespace(const char *role);

/* roots.c: file systems */
void roots_make(void);
void root_path(char *path, size_t size, const char *role, const char *inside);

/* capture.c: writes the packets of an interface to a pcap file */
void captures_start(void);
void captures_stop(void);

/* processes.c: all other processes of a job */
struct process {
    const char *role;
    const char *kind; /* link, box, server, client */
    const struct record *record;
    int pid, pipe, output;
    uint64_t printed;
    bool started, ended, flooded, stopped, timed_out;
    bool reported_flood; /* the link reported that an endpoint sends far more than its case needs */
    int code;            /* exit code, or 128 + signal */
    double began, end;
};
extern struct process processes[16];
extern int process_count;
void processes_prepare(void);
void process_start(struct process *process);
void process_prefer(const struct process *process);
void process_kill(struct process *process);
void process_terminate(struct process *process, double grace);
void pump(double until, int descriptor); /* waits for an event of a process, for `descriptor`, or for the time */
void pump_for(double seconds);

/* ready.c: checks whether processes are ready; listens for clients that wait for the link */
void listeners_make(void);
void send_datagram(const char *role, const char *address, const char *port);
bool accepts(const char *role, int port);
bool negotiates(const char *role, const char *address, const char *text); /* one question to a QUIC server */
bool listens(const struct process *process, int port);

/* tar.c: archives a folder */
void archive(const char *folder, const char *name, const char *to, uint64_t budget);

#endif
