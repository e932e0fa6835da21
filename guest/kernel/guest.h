/* SPDX-License-Identifier: GPL-2.0 */
/*
 * bentpipe's guest kernel: what User-Mode Linux tells its host, and what the host tells it.
 *
 * Environment of the kernel's process (not its command line, which enters the random number generator):
 *   GUEST_SEED      decimal, 64 bits: all randomness that the kernel takes from its host follows from it
 *   GUEST_STATE     file of at least sizeof(struct guest_state) bytes, where the host reads virtual time and running task
 *   GUEST_CHARGE    SYSCALL,FAULT,PERCENT,TRAP: virtual time that endpoints pay, see guest_worked(); without it their
 *                   CPU time isn't measured either
 */
#ifndef __GUEST_H
#define __GUEST_H

struct guest_work {
	unsigned long long syscalls, faults;
	unsigned long long cpu_ns;	/* the host's CPU time in user code; 0: not measured */
};

struct guest_state {
	unsigned long long time;	/* ns of virtual time since the boot */
	unsigned long long switches;	/* context switches */
	unsigned int pid;		/* of the task that runs now, as the guest's first namespace numbers it */
	char role[12];			/* its host name: client, server, sim; empty for the kernel's own tasks */
	char name[16];			/* its name, as in /proc/PID/comm */
	struct guest_work work[2];	/* of the endpoints: client, server */
	unsigned long long least_ns;	/* the shortest stay in user code so far; 0: not measured */
};

struct guest_charges {
	unsigned long syscall_ns;	/* per system call */
	unsigned long fault_ns;		/* per page fault */
	unsigned long cpu_percent;	/* of the host's CPU time in user code, beyond trap_ns each time */
	unsigned long trap_ns;		/* what entering and leaving user code costs User-Mode Linux itself */
	int on;
};

extern struct guest_state *guest_state;
extern struct guest_charges guest_charges;

/* Host side (os-Linux/guest_host.c). */
void guest_begin(void);
unsigned long long guest_cpu_time(int pid);

/* Kernel side (kernel/guest.c). */
void guest_worked(int is_syscall, unsigned long long cpu_ns);
void guest_looked(int syscall); /* a system call returned 0 in no time */
struct uml_pt_regs;
int guest_counter_read(struct uml_pt_regs *regs); /* whether a fault was that of a reader, who has got a value */

#endif
