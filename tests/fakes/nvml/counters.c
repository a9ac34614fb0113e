/*
 * Counts of calls in the file named by MLTOP_FAKE_NVML_COUNTS,
     mapped and shared by all processes that use it.
 *
 * Layout (native byte order, read by counts.py): "MLTOPNC1", uint32 functions, uint32 GPUs; then a name of 64
 * bytes per function; then per function uint64 total and one uint64 per GPU. A call costs two atomic adds.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake.h"

enum { NAME_SIZE = 64, COLUMNS = 1 + MAX_GPUS };
struct header {
    char magic[8];
    uint32_t functions, gpus;
};

static uint64_t *counters; /* [functions][COLUMNS], NULL when nobody counts */

static void describe(char *file, struct header header)
{
    memcpy(file, &header, sizeof header);
    for (uint32_t i = 0; i < header.functions; i++)
        strncpy(file + sizeof header + i * NAME_SIZE, __start_fake_calls[i]->name, NAME_SIZE - 1);
}

__attribute__((constructor)) static void map_counters(void)
{
    const char *path = getenv("MLTOP_FAKE_NVML_COUNTS");
    if (path == NULL || path[0] == '\0')
        return;
    struct header header = {.magic = "MLTOPNC1", .gpus = MAX_GPUS};
    header.functions = (uint32_t)(__stop_fake_calls - __start_fake_calls);
    const size_t names_end = sizeof header + (size_t)header.functions * NAME_SIZE;
    const size_t size = names_end + (size_t)header.functions * COLUMNS * sizeof(uint64_t);

    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0 || flock(fd, LOCK_EX) != 0)
        fake_abort(0, "MLTOP_FAKE_NVML_COUNTS: %s: %s", path, strerror(errno));
    const bool is_new = lseek(fd, 0, SEEK_END) == 0;
    if (is_new && ftruncate(fd, (off_t)size) != 0)
        fake_abort(0, "MLTOP_FAKE_NVML_COUNTS: %s: %s", path, strerror(errno));
    if (lseek(fd, 0, SEEK_END) != (off_t)size)
        fake_abort(0, "MLTOP_FAKE_NVML_COUNTS: %s was written by another build of the fake NVML", path);
    char *file = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (file == MAP_FAILED)
        fake_abort(0, "MLTOP_FAKE_NVML_COUNTS: %s: %s", path, strerror(errno));
    if (is_new)
        describe(file, header);
    flock(fd, LOCK_UN); /* closing would not do: the mapping keeps the open file, and so its lock */
    close(fd);
    counters = (uint64_t *)(file + names_end);
}

void count_call(const struct call *call, int gpu)
{
    if (counters == NULL)
        return;
    uint64_t *row = counters + (size_t)call->row * COLUMNS;
    __atomic_add_fetch(&row[0], 1, __ATOMIC_RELAXED);
    if (gpu != NO_GPU)
        __atomic_add_fetch(&row[1 + gpu], 1, __ATOMIC_RELAXED);
}
