// SPDX-License-Identifier: GPL-2.0
/* bentpipe's guest kernel, kernel side: who runs now, and what time endpoints pay for their work. See guest.h. */

#include <linux/nsproxy.h>
#include <linux/sched.h>
#include <linux/string.h>
#include <linux/time-internal.h>
#include <linux/utsname.h>
#include <guest.h>

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
 * An endpoint pays for a system call or a page fault, and for the time that its own code ran before. The link and the
 * captures pay nothing: they belong to the network, which has no CPU.
 */
void guest_charge(int is_syscall, unsigned long long cpu_ns)
{
	const struct guest_charges *c = &guest_charges;
	unsigned long long ns = is_syscall ? c->syscall_ns : c->fault_ns;
	const char *who = role(current);

	if (strcmp(who, "client") && strcmp(who, "server"))
		return;
	if (cpu_ns > c->trap_ns)
		ns += (cpu_ns - c->trap_ns) * c->cpu_percent / 100;
	if (ns)
		time_travel_ndelay(ns);
}
