/* Makes the file system of each container: the image's disk below, memory above, and the devices in /dev. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "init.h"

static const struct { const char *name; int major, minor; } devices[] = {
    {"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0},
};
static const char *const links[][2] = {
    {"/proc/self/fd", "fd"}, {"/proc/self/fd/0", "stdin"}, {"/proc/self/fd/1", "stdout"},
    {"/proc/self/fd/2", "stderr"}, {"pts/ptmx", "ptmx"},
};

static void make_folder(const char *path) {
    if (mkdir(path, 0755) && errno != EEXIST) give_up("the folder %s can't be made", path);
}

static void mount_or_give_up(const char *type, const char *source, const char *to, int flags, const char *data) {
    make_folder(to);
    if (mount(source, to, type, flags, data)) give_up("%s can't be mounted at %s", type ? type : source, to);
}

void root_path(char *path, size_t size, const char *role, const char *inside) {
    snprintf(path, size, "/roots/%s%s", role, inside);
}

/* An image that both endpoints use is mounted once. */
static void mount_disk(char *at, size_t size, const char *disk) {
    char file[512];
    snprintf(at, size, "/lower/%s", disk);
    if (access(at, F_OK) == 0) return;
    snprintf(file, sizeof file, "/disks/%s", disk);
    make_folder(at);
    if (mount(file, at, "erofs", MS_RDONLY, NULL)) give_up("the disk %s can't be mounted", disk);
}

static void make_devices(const char *role) {
    char path[256];
    root_path(path, sizeof path, role, "/dev");
    mount_or_give_up("tmpfs", "dev", path, MS_NOSUID, "mode=755,size=64k");
    for (size_t i = 0; i < COUNT(devices); i++) {
        snprintf(path, sizeof path, "/roots/%s/dev/%s", role, devices[i].name);
        mknod(path, S_IFCHR | 0666, makedev(devices[i].major, devices[i].minor));
        chmod(path, 0666);
    }
    for (size_t i = 0; i < COUNT(links); i++) {
        snprintf(path, sizeof path, "/roots/%s/dev/%s", role, links[i][1]);
        symlink(links[i][0], path);
    }
    root_path(path, sizeof path, role, "/dev/pts");
    mount_or_give_up("devpts", "pts", path, MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620");
    root_path(path, sizeof path, role, "/dev/shm");
    mount_or_give_up("tmpfs", "shm", path, MS_NOSUID | MS_NODEV, "mode=1777");
}

/* Adds the library of preload/chance.c. The job's description sets LD_PRELOAD. */
static void add_preload(const char *role) {
    static char content[1 << 16];
    char path[256];
    int from = open("/chance.so", O_RDONLY | O_CLOEXEC);
    ssize_t size = from < 0 ? -1 : read(from, content, sizeof content);
    if (size <= 0) give_up("there is no /chance.so");
    close(from);
    root_path(path, sizeof path, role, "/.bentpipe/chance.so");
    write_file(path, content, size, 0644);
}

static void make_root(const char *role, const char *disk) {
    char lower[256], upper[256], work[256], path[256], options[1024];
    mount_disk(lower, sizeof lower, disk);
    snprintf(path, sizeof path, "/upper/%s", role);
    mount_or_give_up("tmpfs", "upper", path, 0, "mode=755");
    snprintf(upper, sizeof upper, "/upper/%s/files", role);
    snprintf(work, sizeof work, "/upper/%s/work", role);
    make_folder(upper);
    make_folder(work);
    snprintf(options, sizeof options, "lowerdir=%s,upperdir=%s,workdir=%s", lower, upper, work);
    root_path(path, sizeof path, role, "");
    mount_or_give_up("overlay", "root", path, 0, options);
    root_path(path, sizeof path, role, "/proc");
    make_folder(path);
    root_path(path, sizeof path, role, "/sys");
    make_folder(path);
    make_devices(role);
    add_preload(role);
}

static void make_tmpfs(const char **field) { /* role, path, bytes */
    char path[256], options[128];
    long long bytes = atoll(field[2]), files = bytes / 4096 > 1024 ? bytes / 4096 : 1024;
    root_path(path, sizeof path, field[0], field[1]);
    snprintf(options, sizeof options, "mode=1777,size=%lld,nr_inodes=%lld", bytes, files);
    mount_or_give_up("tmpfs", "volume", path, MS_NOSUID | MS_NODEV, options);
}

static void bind_folder(const char **field) { /* role, path, folder of the job, ro or rw */
    char path[256], from[512];
    root_path(path, sizeof path, field[0], field[1]);
    snprintf(from, sizeof from, "/host/%s", field[2]);
    mount_or_give_up(NULL, from, path, MS_BIND, NULL);
    if (!strcmp(field[3], "ro") && mount(NULL, path, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL))
        give_up("%s can't be made read-only", path);
}

void roots_make(void) {
    struct record *records;
    const struct record *disks = job_one("disks");
    make_folder("/lower");
    make_folder("/upper");
    make_folder("/roots");
    mount_or_give_up("hostfs", "disks", "/disks", MS_RDONLY, disks ? disks->fields[0] : "");
    int count = job_records("root", &records);
    for (int i = 0; i < count; i++) make_root(records[i].fields[0], records[i].fields[1]);
    count = job_records("tmpfs", &records);
    for (int i = 0; i < count; i++) make_tmpfs(records[i].fields);
    count = job_records("bind", &records);
    for (int i = 0; i < count; i++) bind_folder(records[i].fields);
    count = job_records("device", &records);
    for (int i = 0; i < count; i++) { /* role, path, major, minor */
        char path[256];
        const char **field = records[i].fields;
        root_path(path, sizeof path, field[0], field[1]);
        write_file(path, "", 0, 0666);
        unlink(path);
        if (mknod(path, S_IFCHR | 0666, makedev(atoi(field[2]), atoi(field[3])))) give_up("no device %s", path);
        chmod(path, 0666);
    }
    count = job_records("file", &records);
    for (int i = 0; i < count; i++) {
        char path[512];
        const char **field = records[i].fields; /* role, path, content */
        root_path(path, sizeof path, field[0], field[1]);
        write_file(path, field[2], strlen(field[2]), 0644);
    }
}
