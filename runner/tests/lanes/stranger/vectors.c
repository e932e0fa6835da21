/* Checks that vector registers outlive system calls, page faults, signals, other threads and a fork. Prints "kept". */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define REGISTERS 16
#define EACH(do) do(0) do(1) do(2) do(3) do(4) do(5) do(6) do(7) do(8) do(9) do(10) do(11) do(12) do(13) do(14) do(15)
#define LOAD(n) "movdqu 16*" #n "(%[in]), %%xmm" #n "\n"
#define STORE(n) "movdqu %%xmm" #n ", 16*" #n "(%[out])\n"
#define USED(n) , "xmm" #n

typedef unsigned char Registers[16 * REGISTERS];

/* Fills the registers with a value, does a system call, then touches a byte, and compares. Returns the call's result. */
static long call(unsigned char value, long number, long a, long b, long c, volatile char *touched)
{
	Registers in, out;
	long result;

	memset(in, value, sizeof(in));
	asm volatile(EACH(LOAD) "syscall\nmovb $1, (%[touched])\n" EACH(STORE)
		     : "=a"(result)
		     : "0"(number), "D"(a), "S"(b), "d"(c), [in] "r"(in), [out] "r"(out), [touched] "r"(touched)
		     : "rcx", "r11", "memory" EACH(USED));
	if (memcmp(in, out, sizeof(in))) {
		printf("lost by system call %ld in thread %d\n", number, value);
		fflush(stdout);
		_exit(1);
	}
	return result;
}

static void other_value(int signal)
{
	Registers in;

	memset(in, signal, sizeof(in));
	asm volatile(EACH(LOAD) : : [in] "r"(in) : "memory" EACH(USED));
}

static int there[2], back[2];

/* Answers each byte of the other thread, so that the two take turns. */
static void *answer(void *unused)
{
	char byte, touched;

	while (call(1, SYS_read, there[0], (long)&byte, 1, &touched) == 1)
		call(2, SYS_write, back[1], (long)&byte, 1, &touched);
	return unused;
}

int main(void)
{
	char byte = 0, touched;
	pthread_t thread;
	int turn, status;

	signal(SIGUSR1, other_value);
	if (pipe(there) || pipe(back) || pthread_create(&thread, NULL, answer, NULL))
		return 1;
	for (turn = 0; turn < 1000; turn++) {
		char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		call(3, SYS_write, there[1], (long)&byte, 1, &touched);
		call(4, SYS_read, back[0], (long)&byte, 1, &touched);
		call(5, SYS_getppid, 0, 0, 0, page);
		call(6, SYS_tgkill, getpid(), gettid(), SIGUSR1, &touched);
		call(9, SYS_munmap, (long)page, 4096, 0, &touched);
	}
	for (turn = 0; turn < 20; turn++) {
		long child = call(7, SYS_fork, 0, 0, 0, &touched);

		if (!child)
			_exit(call(8, SYS_getppid, 0, 0, 0, &touched) < 0);
		if (waitpid(child, &status, 0) != child || status)
			return 1;
	}
	close(there[1]);
	pthread_join(thread, NULL);
	puts("kept");
	return 0;
}
