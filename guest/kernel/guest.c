// SPDX-License-Identifier: GPL-2.0
/* bentpipe's guest kernel, kernel side: who runs now, and what time endpoints pay for their work. See guest.h. */

#include <linux/mm_types.h>
#include <linux/nsproxy.h>
#include <linux/sched.h>
#include <linux/string.h>
#include <linux/timekeeping.h>
#include <linux/time-internal.h>
#include <linux/uaccess.h>
#include <linux/utsname.h>
#include <asm/unistd.h>
#include <sysdep/ptrace.h>
#include <guest.h>
#include <guest_clock.h>

#define GENERAL_PROTECTION 13 /* the CPU's number of that fault */

#define LOOK_NS 10000

static const char *role(struct task_struct *task)
{
	return task->nsproxy ? task->nsproxy->uts_ns->name.nodename : "";
}

static int is_endpoint(void)
{
	const char *who = role(current);

	return !strcmp(who, "client") || !strcmp(who, "server");
}

void guest_switched(struct task_struct *to)
{
	guest_state->switches++;
	guest_state->pid = to->pid;
	strscpy(guest_state->role, role(to), sizeof(guest_state->role));
	strscpy(guest_state->name, to->comm, sizeof(guest_state->name));
}

/*
 * The running task comes back from user code, with a system call or a fault. Of endpoints it is counted, and where there
 * are charges they pay for it, and for the time that their own code ran before. The link and the captures pay nothing:
 * they belong to the network, which has no CPU.
 */
void guest_worked(int is_syscall, unsigned long long cpu_ns)
{
	const struct guest_charges *c = &guest_charges;
	unsigned long long ns = is_syscall ? c->syscall_ns : c->fault_ns;
	const char *who = role(current);
	struct guest_work *work;

	if (!is_endpoint())
		return;
	work = &guest_state->work[who[0] == 's'];
	if (is_syscall)
		work->syscalls++;
	else
		work->faults++;
	if (!c->on)
		return;
	work->cpu_ns += cpu_ns;
	if (cpu_ns && (!guest_state->least_ns || cpu_ns < guest_state->least_ns))
		guest_state->least_ns = cpu_ns;
	if (cpu_ns > c->trap_ns)
		ns += (cpu_ns - c->trap_ns) * c->cpu_percent / 100;
	if (ns)
		time_travel_ndelay(ns);
}

/*
 * Before a packet is due, some programs look for events again and again and never wait, since the kernel would wake them
 * too late: timers of poll() count milliseconds. If a look took no time, they would look a million times in a transfer, and
 * each look costs 10 us of the host's CPU time. So a look that finds nothing takes LOOK_NS; on a CPU it takes about 1 us, and
 * a timer of Linux may be 50 us late. Where endpoints pay for their work, they pay for this as for any system call.
 */
void guest_looked(int syscall)
{
	if (guest_charges.on || !is_endpoint())
		return;
	switch (syscall) {
	case __NR_poll:
	case __NR_ppoll:
	case __NR_select:
	case __NR_pselect6:
	case __NR_epoll_wait:
	case __NR_epoll_pwait:
	case __NR_epoll_pwait2:
		time_travel_ndelay(LOOK_NS);
	}
}

/*
 * The CPU's time stamp counter shows the host's time. The host lets its readers fault (stub_exe.c), and they get the
 * guest's, at 1 GHz. As any look at a clock it takes a moment, so that who waits for a value gets on.
 */
int guest_counter_read(struct uml_pt_regs *regs)
{
	unsigned char __user *at = (void __user *)UPT_IP(regs);
	unsigned char code[3];
	int length;

	if (regs->faultinfo.trap_no != GENERAL_PROTECTION || copy_from_user(code, at, 2) || code[0] != 0x0f)
		return 0;
	if (code[1] == 0x31)
		length = 2; /* rdtsc */
	else if (code[1] == 0x01 && !copy_from_user(code + 2, at + 2, 1) && code[2] == 0xf9)
		length = 3; /* rdtscp */
	else
		return 0;
	time_travel_ndelay(TIMER_MULTIPLIER);
	REGS_AX(regs->gp) = guest_state->time & 0xffffffff;
	REGS_DX(regs->gp) = guest_state->time >> 32;
	if (length == 3)
		REGS_CX(regs->gp) = 0; /* the only CPU */
	UPT_IP(regs) += length;
	return 1;
}

extern unsigned long long guest_next_event(void);

/* Where endpoints pay for their work, each read of the clock remains a system call. */
void guest_clock_open(struct guest_clock *clock)
{
	unsigned long flags;

	clock->reads = 0;
	if (guest_charges.on) {
		clock->until = 0;
		return;
	}
	local_irq_save(flags); /* the kernel's own reads then take no time */
	clock->now = guest_state->time;
	clock->until = guest_next_event();
	clock->monotonic = ktime_get_ns();
	clock->realtime = ktime_get_real_ns();
	local_irq_restore(flags);
}

/* A process may write any number of reads: time stays before the next event. */
void guest_clock_close(struct guest_clock *clock)
{
	unsigned long long now = guest_state->time, until = guest_next_event(), reads = READ_ONCE(clock->reads);

	if (guest_charges.on || !reads || until <= now)
		return;
	reads = min(reads, (until - now - 1) / GUEST_CLOCK_READ);
	time_travel_ndelay(reads * GUEST_CLOCK_READ);
}

/* A task's floating-point registers are about to be read or written here: they may still be in its stub process. */
void guest_fp_fetch(struct task_struct *task)
{
	struct mm_id *id = task->mm ? &task->mm->context.id : NULL;

	if (id && id->fp_owner == &task->thread.regs.regs)
		guest_fp_save(id);
}

/* Writes into the copied vDSO where processes have their struct guest_clock. */
void guest_clock_place(void *vdso, unsigned long address)
{
	unsigned long *word = vdso, *end = vdso + PAGE_SIZE;

	while (word < end && *word != GUEST_CLOCK_MARK)
		word++;
	if (word == end)
		panic("The vDSO has no mark");
	*word = address;
}
