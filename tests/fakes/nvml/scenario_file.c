/* The scenario's file: found through MLTOP_FAKE_NVML, read again whenever it changed. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "scenario.h"

pthread_mutex_t scenario_mutex = PTHREAD_MUTEX_INITIALIZER;
struct scenario *scenario_now;
static struct stat read_from; /* the file that scenario_now was read from */

void fake_abort(int line, const char *format, ...)
{
    const char *path = getenv("MLTOP_FAKE_NVML");
    char message[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    if (line > 0)
        fprintf(stderr, "fake NVML: %s:%d: %s\n", path ? path : "?", line, message);
    else
        fprintf(stderr, "fake NVML: %s\n", message);
    abort();
}

static bool unchanged(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_dev == b->st_dev && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static char *read_whole(int fd, size_t size)
{
    char *content = calloc(1, size + 1);
    for (size_t at = 0; at < size;) {
        const ssize_t got = read(fd, content + at, size - at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        at += (size_t)got;
    }
    return content;
}

static void load(const char *path)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (fd < 0 || fstat(fd, &status) != 0)
        fake_abort(0, "MLTOP_FAKE_NVML: %s: %s", path, strerror(errno));
    char *content = read_whole(fd, (size_t)status.st_size);
    close(fd);
    struct scenario *parsed = scenario_parse(content);
    parsed->generation = init_generation();
    free(content);
    if (scenario_now != NULL)
        scenario_free(scenario_now);
    scenario_now = parsed;
    read_from = status;
}

void scenario_refresh(void)
{
    static const char *path;
    pthread_mutex_lock(&scenario_mutex);
    if (path == NULL)
        path = getenv("MLTOP_FAKE_NVML");
    if (path == NULL)
        fake_abort(0, "MLTOP_FAKE_NVML is not set; it names the scenario file");
    struct stat status;
    if (scenario_now == NULL || stat(path, &status) != 0 || !unchanged(&status, &read_from))
        load(path);
    pthread_mutex_unlock(&scenario_mutex);
}
