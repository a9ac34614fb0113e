/* Loaded before the C library (LD_PRELOAD): how full filesystems are and what time it is, as files below $FAKE_LIBC say.
 *
 * filesystems: lines "PERCENT PATH"; the longest path that one asked for begins with counts, others are real.
 * clock: seconds by which the wall clock is off. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { BLOCKS = 250000000, BLOCK_BYTES = 4096, INODES = 1000000 };

static FILE *told(const char *name)
{
    const char *folder = getenv("FAKE_LIBC");
    char path[4096];
    if (folder == NULL || snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
        return NULL;
    return fopen(path, "re");
}

static int percent_of(const char *path)
{
    FILE *file = told("filesystems");
    char prefix[4096];
    int percent, found = -1;
    size_t longest = 0;
    if (file == NULL)
        return -1;
    while (fscanf(file, "%d %4095s", &percent, prefix) == 2) {
        size_t length = strlen(prefix);
        if (length >= longest && strncmp(path, prefix, length) == 0) {
            longest = length;
            found = percent;
        }
    }
    fclose(file);
    return found;
}

int statvfs(const char *path, struct statvfs *out)
{
    int percent = percent_of(path);
    if (percent < 0) {
        int (*real)(const char *, struct statvfs *) = (int (*)(const char *, struct statvfs *))dlsym(RTLD_NEXT, "statvfs");
        return real(path, out);
    }
    memset(out, 0, sizeof *out);
    out->f_bsize = out->f_frsize = BLOCK_BYTES;
    out->f_blocks = BLOCKS;
    out->f_bfree = out->f_bavail = (fsblkcnt_t)BLOCKS / 100 * (100 - percent);
    out->f_files = INODES;
    out->f_ffree = out->f_favail = INODES / 2;
    out->f_namemax = 255;
    return 0;
}

int statvfs64(const char *path, struct statvfs64 *out)
{
    return statvfs(path, (struct statvfs *)out); /* one and the same on 64 bits */
}

int clock_gettime(clockid_t clock, struct timespec *out)
{
    int result = (int)syscall(SYS_clock_gettime, clock, out);
    if (result == 0 && clock == CLOCK_REALTIME) {
        FILE *file = told("clock");
        long seconds = 0;
        if (file != NULL) {
            if (fscanf(file, "%ld", &seconds) == 1)
                out->tv_sec += seconds;
            fclose(file);
        }
    }
    return result;
}
