// SPDX-License-Identifier: GPL-2.0
/* bentpipe's guest kernel, host side: seeded randomness, shared state, CPU times. See guest.h. */

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>
#include <init.h>
#include <os.h>
#include <guest.h>

static struct guest_state nobody_looks;
struct guest_state *guest_state = &nobody_looks;
struct guest_charges guest_charges;

static int seeded;
static uint64_t seed;

/* Called once, before the kernel starts and while the C library's functions still work. */
void guest_begin(void)
{
	const char *path = getenv("GUEST_STATE"), *text = getenv("GUEST_SEED"), *charge = getenv("GUEST_CHARGE");

	/* As its processes have it: a CPU changes this setting slowly. Nothing here reads the host's clock. */
	prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0);
	if (text) {
		seed = strtoull(text, NULL, 10);
		seeded = 1;
	}
	if (path) {
		int fd = open(path, O_RDWR | O_CLOEXEC);
		void *shared = fd < 0 ? MAP_FAILED :
			mmap(NULL, sizeof(*guest_state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

		if (shared == MAP_FAILED) {
			perror("GUEST_STATE");
			exit(1);
		}
		guest_state = shared;
	}
	if (charge) {
		struct guest_charges *c = &guest_charges;

		if (sscanf(charge, "%lu,%lu,%lu,%lu", &c->syscall_ns, &c->fault_ns, &c->cpu_percent, &c->trap_ns) != 4) {
			fprintf(stderr, "GUEST_CHARGE: four numbers are expected\n");
			exit(1);
		}
		c->on = 1;
	}
}

/* SplitMix64 (Steele et al., 2014): the kernel hashes what it gets from here. */
ssize_t os_getrandom(void *buf, size_t len, unsigned int flags)
{
	unsigned char *to = buf;
	size_t i;

	if (!seeded)
		return getrandom(buf, len, flags);
	for (i = 0; i < len; i++) {
		static uint64_t z;

		if (i % 8 == 0) {
			z = seed += 0x9E3779B97F4A7C15ULL;
			z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
			z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
			z ^= z >> 31;
		}
		to[i] = z >> (8 * (i % 8));
	}
	return len;
}

/* CPU time of a process that runs user code, ns. */
unsigned long long guest_cpu_time(int pid)
{
	struct timespec t;
	clockid_t clock = ((clockid_t)~pid << 3) | 2; /* its CPU-time clock, as clock_getcpuclockid(3) makes it */

	if (clock_gettime(clock, &t))
		return 0;
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}
