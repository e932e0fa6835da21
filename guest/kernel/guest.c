// SPDX-License-Identifier: GPL-2.0
/* bentpipe's guest kernel, kernel side: who runs now, and what time endpoints pay for their work. See guest.h. */

#include <linux/nsproxy.h>
#include <linux/sched.h>
#include <linux/string.h>
#include <linux/time-internal.h>
#include <linux/uaccess.h>
#include <linux/utsname.h>
#include <sysdep/ptrace.h>
#include <guest.h>

#define GENERAL_PROTECTION 13 /* the CPU's number of that fault */

static const char *role(struct task_struct *task)
{
	return task->nsproxy ? task->nsproxy->uts_ns->name.nodename : "";
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

	if (strcmp(who, "client") && strcmp(who, "server"))
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
