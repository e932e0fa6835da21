/* This library is preloaded into endpoints. std::random_device of libstdc++ gets its numbers from the CPU (RDRAND): they don't
   depend on a seed, and most CPUs can't hide RDRAND from a process. Here the numbers come from the kernel, and follow from the
   job's seed. */
#include <sys/syscall.h>

void begin(void *device, const void *token) __asm__("_ZNSt13random_device7_M_initERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE");
void begin_old(void *device, const void *token) __asm__("_ZNSt13random_device16_M_init_pretr1ERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE");
void end(void *device) __asm__("_ZNSt13random_device7_M_finiEv");
unsigned get_value(void *device) __asm__("_ZNSt13random_device9_M_getvalEv");
unsigned get_value_old(void *device) __asm__("_ZNSt13random_device16_M_getval_pretr1Ev");

void begin(void *device, const void *token) { (void)device, (void)token; }
void begin_old(void *device, const void *token) { (void)device, (void)token; }
void end(void *device) { (void)device; }

unsigned get_value(void *device) {
    unsigned value;
    long got;
    (void)device;
    do
        __asm__ volatile("syscall"
                         : "=a"(got)
                         : "a"(SYS_getrandom), "D"(&value), "S"(sizeof value), "d"(0)
                         : "rcx", "r11", "memory");
    while (got != sizeof value);
    return value;
}

unsigned get_value_old(void *device) { return get_value(device); }
