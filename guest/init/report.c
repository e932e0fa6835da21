/* Messages of init to the host: lines in OUT/report, each with a word and its values. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "init.h"

static int file = -1;

static void say(const char *text) {
    if (file < 0) file = open(OUT "/report", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file >= 0 && write(file, text, strlen(text)) < 0) file = -1;
}

void report(const char *format, ...) {
    char line[4096];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    if (length > (int)sizeof line - 2) length = sizeof line - 2;
    for (int i = 0; i < length; i++)
        if (line[i] == '\n') line[i] = ' ';
    strcpy(line + length, "\n");
    say(line);
}

void give_up(const char *format, ...) {
    char why[1024];
    int number = errno;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, sizeof why, format, arguments);
    va_end(arguments);
    report("error guest-not-started - %s (errno %d: %s)", why, number, strerror(number));
    int console = open("/dev/kmsg", O_WRONLY | O_CLOEXEC);
    if (console >= 0) dprintf(console, "bentpipe init: %s (errno %d: %s)\n", why, number, strerror(number));
    power_off();
}

void power_off(void) {
    sync();
    reboot(RB_POWER_OFF);
    _exit(1);
}

double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

void write_file(const char *path, const void *data, size_t size, int mode) {
    char folder[512];
    snprintf(folder, sizeof folder, "%s", path);
    for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(folder, 0755);
        *slash = '/';
    }
    unlink(path); /* the path may be a link to another file */
    int to = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    if (to < 0) give_up("%s can't be written", path);
    for (size_t done = 0; done < size;) {
        ssize_t wrote = write(to, (const char *)data + done, size - done);
        if (wrote < 0) give_up("%s can't be written", path);
        done += wrote;
    }
    fchmod(to, mode);
    close(to);
}
