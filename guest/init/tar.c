/* Writes a folder to a tar file (POSIX ustar, with long names as in GNU tar), in the order of names. Files of a hostile endpoint
   become entries of the archive, never files of the host. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "init.h"

#define BLOCK 512
#define DEPTH 8 /* folders below each other, as in runner/store/collect.py, which refuses longer names */

static int to;
static uint64_t left;
static bool full;
static char buffer[1 << 16];

static void put(const void *data, size_t size) {
    for (size_t done = 0; done < size && !full;) {
        ssize_t wrote = write(to, (const char *)data + done, size - done);
        if (wrote < 0) full = true;
        else done += wrote;
    }
}

static void put_header(const char *name, const struct stat *about, char type, const char *link, uint64_t size) {
    char head[BLOCK] = {0};
    unsigned sum = 0;
    if (strlen(name) > 99) {
        struct stat none = {.st_mode = 0644};
        char padded[BLOCK * 9] = {0};
        size_t length = strlen(name) + 1;
        if (length > sizeof padded) return;
        memcpy(padded, name, length);
        put_header("././@LongLink", &none, 'L', "", length);
        put(padded, (length + BLOCK - 1) / BLOCK * BLOCK);
    }
    snprintf(head, 100, "%s", name);
    snprintf(head + 100, 8, "%07o", about->st_mode & 07777);
    snprintf(head + 108, 8, "%07o", 0);
    snprintf(head + 116, 8, "%07o", 0);
    if (size < (1ull << 33)) snprintf(head + 124, 12, "%011llo", (unsigned long long)size);
    else {
        head[124] = (char)0x80; /* a number of 11 bytes */
        for (int i = 0; i < 8; i++) head[128 + i] = (char)(size >> (8 * (7 - i)));
    }
    snprintf(head + 136, 12, "%011llo", (unsigned long long)about->st_mtime);
    head[156] = type;
    snprintf(head + 157, 100, "%s", link);
    memcpy(head + 257, "ustar\00000", 8);
    memset(head + 148, ' ', 8);
    for (int i = 0; i < BLOCK; i++) sum += (unsigned char)head[i];
    snprintf(head + 148, 8, "%06o", sum);
    put(head, BLOCK);
}

static void put_file(const char *path, const char *name, const struct stat *about) {
    uint64_t size = about->st_size, done = 0;
    int from = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    put_header(name, about, '0', "", size);
    if (size > left) { /* runner/store/collect.py sees the size, and stops reading here */
        full = true;
        if (from >= 0) close(from);
        return;
    }
    left -= size;
    while (from >= 0 && done < size && !full) {
        ssize_t got = read(from, buffer, size - done < sizeof buffer ? size - done : sizeof buffer);
        if (got <= 0) break;
        put(buffer, got);
        done += got;
    }
    if (from >= 0) close(from);
    memset(buffer, 0, sizeof buffer);
    while (done % BLOCK || done < size) {
        uint64_t missing = done < size ? size - done : BLOCK - done % BLOCK;
        put(buffer, missing < sizeof buffer ? missing : sizeof buffer);
        done += missing < sizeof buffer ? missing : sizeof buffer;
    }
}

static char type_of(mode_t mode) {
    return S_ISDIR(mode) ? '5' : S_ISLNK(mode) ? '2' : S_ISFIFO(mode) ? '6' : S_ISBLK(mode) ? '4' : '3';
}

static void put_tree(const char *path, const char *name, int depth) {
    struct stat about;
    char link[100] = "";
    if (full || lstat(path, &about)) return;
    if (S_ISREG(about.st_mode)) {
        put_file(path, name, &about);
        return;
    }
    if (S_ISLNK(about.st_mode) && readlink(path, link, sizeof link - 1) < 0) return;
    put_header(name, &about, type_of(about.st_mode), link, 0);
    if (!S_ISDIR(about.st_mode) || depth == DEPTH) return;
    struct dirent **entries;
    int count = scandir(path, &entries, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        char inner[4200], inner_name[4200];
        const char *last = entries[i]->d_name;
        if (strcmp(last, ".") && strcmp(last, "..") && !full) {
            snprintf(inner, sizeof inner, "%s/%s", path, last);
            snprintf(inner_name, sizeof inner_name, "%s/%s", name, last);
            put_tree(inner, inner_name, depth + 1);
        }
        free(entries[i]);
    }
    if (count >= 0) free(entries);
}

void archive(const char *folder, const char *name, const char *file, uint64_t budget) {
    to = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (to < 0) give_up("%s can't be written", file);
    left = budget;
    full = false;
    put_tree(folder, name, 0);
    memset(buffer, 0, 2 * BLOCK);
    if (!full) put(buffer, 2 * BLOCK);
    close(to);
}
