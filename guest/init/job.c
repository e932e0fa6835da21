/* Reads the job's description. All words end with NUL. A record is a name, the number of its fields, and the fields. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "init.h"

static struct record *all;
static int total;

void job_load(const char *path) {
    struct stat about;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &about) || about.st_size == 0) give_up("there is no %s", path);
    char *text = malloc(about.st_size + 1);
    ssize_t got, size = 0;
    while ((got = read(file, text + size, about.st_size - size)) > 0) size += got;
    close(file);
    if (size != about.st_size || text[size - 1]) give_up("%s is cut off", path);
    for (char *at = text, *end = text + size; at < end;) {
        struct record record = {.name = at};
        at += strlen(at) + 1;
        if (at >= end) give_up("%s ends within the record %s", path, record.name);
        record.count = atoi(at);
        at += strlen(at) + 1;
        record.fields = calloc(record.count + 1, sizeof(char *));
        for (int i = 0; i < record.count; i++) {
            if (at >= end) give_up("%s ends within the record %s", path, record.name);
            record.fields[i] = at;
            at += strlen(at) + 1;
        }
        all = realloc(all, (total + 1) * sizeof(*all));
        all[total++] = record;
    }
}

int job_records(const char *name, struct record **records) {
    struct record *found = calloc(total + 1, sizeof(*found));
    int count = 0;
    for (int i = 0; i < total; i++)
        if (!strcmp(all[i].name, name)) found[count++] = all[i];
    *records = found;
    return count;
}

const struct record *job_one(const char *name) {
    for (int i = 0; i < total; i++)
        if (!strcmp(all[i].name, name)) return &all[i];
    return NULL;
}

double job_seconds(const char *name) {
    for (int i = 0; i < total; i++)
        if (!strcmp(all[i].name, "set") && all[i].count == 2 && !strcmp(all[i].fields[0], name))
            return atof(all[i].fields[1]);
    give_up("the job's description has no `set %s`", name);
}
