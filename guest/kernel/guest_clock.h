/* SPDX-License-Identifier: GPL-2.0 */
/*
 * bentpipe's guest kernel: reads of the clock without a system call, which costs 10 us of the host's CPU time.
 *
 * A read has the same result as the system call: it takes GUEST_CLOCK_READ ns of virtual time. The process counts its reads,
 * and the kernel adds them to its own clock when it runs again. Before the kernel has work to do, the process asks the kernel.
 */
#ifndef __GUEST_CLOCK_H
#define __GUEST_CLOCK_H

#define GUEST_CLOCK_READ 256	/* ns: TIMER_MULTIPLIER of time-internal.h */
#define GUEST_CLOCK_MARK 0x6775657374636c6bUL

/* In each address space, where its processes can read and write it (struct stub_data). */
struct guest_clock {
	unsigned long long now;		/* ns of virtual time when user code began to run */
	unsigned long long until;	/* ns of virtual time of the kernel's next event; 0: ask the kernel */
	unsigned long long reads;	/* since `now` */
	unsigned long long monotonic;	/* ns that CLOCK_MONOTONIC shows at `now` */
	unsigned long long realtime;	/* ns that CLOCK_REALTIME shows at `now` */
};

void guest_clock_open(struct guest_clock *clock);	/* before user code runs */
void guest_clock_close(struct guest_clock *clock);	/* after user code ran */
void guest_clock_place(void *vdso, unsigned long address);

#endif
