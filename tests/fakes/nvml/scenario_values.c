/* One value of the scenario: from its text, and out to the functions that answer with it. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "scenario.h"

bool parse_integer(const char *text, long long *out)
{
    char *end;
    errno = 0;
    *out = strtoll(text, &end, strncmp(text, "0x", 2) == 0 ? 16 : 10);
    return end != text && *end == '\0' && errno == 0;
}

/* "A", or what runs: "A + B/s" or "A + B/s since T", T seconds of CLOCK_MONOTONIC. */
static bool parse_number(const char *text, struct value *out)
{
    int end = 0;
    if (parse_integer(text, &out->number))
        return true;
    if (sscanf(text, "%lld + %lf/s%n", &out->number, &out->per_s, &end) != 2 || end == 0)
        return false;
    if (text[end] == '\0')
        return true;
    const int more = end;
    return sscanf(text + more, " since %lf%n", &out->since_s, &end) == 1 && text[more + end] == '\0';
}

static long long number_now(const struct value *value)
{
    if (value->per_s == 0)
        return value->number;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const double since_s = (double)now.tv_sec + (double)now.tv_nsec / 1e9 - value->since_s;
    return value->number + (long long)(value->per_s * since_s);
}

static bool parse_flag(const char *text, long long *out)
{
    *out = strcmp(text, "1") == 0 || strcmp(text, "true") == 0;
    return *out || strcmp(text, "0") == 0 || strcmp(text, "false") == 0;
}

/* PID:BYTES:KIND or PID:BYTES:KIND:INSTANCE; BYTES may be "?". */
static bool parse_process(char *text, struct process *out)
{
    const char *fields[3];
    for (int i = 0; i < 3; i++)
        if ((fields[i] = strsep(&text, ":")) == NULL)
            return false;
    long long pid, bytes = 0, instance = NO_GPU_INSTANCE;
    if (!parse_integer(fields[0], &pid) || pid <= 0 || (text != NULL && !parse_integer(text, &instance)))
        return false;
    const bool is_known = strcmp(fields[1], "?") != 0;
    if (is_known && (!parse_integer(fields[1], &bytes) || bytes < 0))
        return false;
    if (strcmp(fields[2], "compute") != 0 && strcmp(fields[2], "graphics") != 0 &&
        strcmp(fields[2], "mps") != 0)
        return false;
    *out = (struct process){.pid = (unsigned int)pid,
                            .memory_bytes = is_known ? (unsigned long long)bytes : VALUE_NOT_AVAILABLE,
                            .kind = fields[2][0],
                            .gpu_instance = (unsigned int)instance};
    return true;
}

static void parse_processes(const struct key *key, const char *text, struct value *value)
{
    char *rest = strdup(text);
    char *cursor = rest;
    for (char *item; (item = strsep(&cursor, ",")) != NULL;) {
        item += strspn(item, " \t");
        if (*item == '\0')
            continue;
        value->processes = reallocarray(value->processes, value->process_count + 1, sizeof *value->processes);
        if (!parse_process(item, &value->processes[value->process_count++]))
            fake_abort(value->line, "%s is a list of PID:BYTES:compute|graphics|mps[:INSTANCE], not \"%s\"", key->name,
                       text);
    }
    free(rest);
}

struct value value_parse(const struct key *key, const char *text, int line)
{
    struct value value = {.state = GIVEN, .line = line};
    if (strcmp(text, "unsupported") == 0) {
        value.state = UNSUPPORTED;
        return value;
    }
    switch (key->kind) {
    case TEXT:
        value.text = strdup(text);
        break;
    case NUMBER:
        if (!parse_number(text, &value))
            fake_abort(line, "%s is an integer or A + B/s [since T], not \"%s\"", key->name, text);
        break;
    case MASK:
        if (strncmp(text, "0x", 2) != 0 || !parse_integer(text, &value.number))
            fake_abort(line, "%s is a mask such as 0x40, not \"%s\"", key->name, text);
        break;
    case FLAG:
        if (!parse_flag(text, &value.number))
            fake_abort(line, "%s is 0 or 1, not \"%s\"", key->name, text);
        break;
    case PROCESSES:
        parse_processes(key, text, &value);
        break;
    }
    return value;
}

void value_free(struct value *value)
{
    free(value->text);
    free(value->processes);
    *value = (struct value){.state = ABSENT};
}

/* The caller holds scenario_mutex. A GPU beyond the count (it shrank meanwhile) has nothing. */
static const struct value *value_of(int gpu, const struct key *key)
{
    static const struct value nothing = {.state = UNSUPPORTED};
    if (gpu < 0 || gpu >= (int)scenario_now->count)
        return &nothing;
    return &scenario_now->rows[1 + gpu][key->column];
}

bool is_absent(int gpu, const struct key *key)
{
    pthread_mutex_lock(&scenario_mutex);
    const bool absent = value_of(gpu, key)->state == ABSENT;
    pthread_mutex_unlock(&scenario_mutex);
    return absent;
}

nvmlReturn_t number_of(int gpu, const struct key *key, long long *out)
{
    if (gpu >= MAX_GPUS)
        return mig_number_of(gpu, key, out);
    pthread_mutex_lock(&scenario_mutex);
    const struct value *value = value_of(gpu, key);
    const bool given = value->state == GIVEN;
    if (given)
        *out = number_now(value);
    pthread_mutex_unlock(&scenario_mutex);
    return given ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t text_of(int gpu, const struct key *key, char out[TEXT_SIZE])
{
    if (gpu >= MAX_GPUS)
        return mig_text_of(gpu, key, out);
    pthread_mutex_lock(&scenario_mutex);
    const struct value *value = value_of(gpu, key);
    const bool given = value->state == GIVEN;
    if (given)
        snprintf(out, TEXT_SIZE, "%s", value->text);
    pthread_mutex_unlock(&scenario_mutex);
    return given ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t processes_of(int gpu, const struct key *key, char kind, struct process *out, unsigned int room,
                           unsigned int *count)
{
    *count = 0;
    pthread_mutex_lock(&scenario_mutex);
    const struct value *value = value_of(gpu, key);
    const bool given = value->state == GIVEN;
    for (unsigned int i = 0; given && i < value->process_count; i++) {
        if (value->processes[i].kind != kind)
            continue;
        if (*count < room)
            out[*count] = value->processes[i];
        ++*count;
    }
    pthread_mutex_unlock(&scenario_mutex);
    return given ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

unsigned int scenario_count(void)
{
    pthread_mutex_lock(&scenario_mutex);
    const unsigned int count = scenario_now->count;
    pthread_mutex_unlock(&scenario_mutex);
    return count;
}

int scenario_cuda(void)
{
    pthread_mutex_lock(&scenario_mutex);
    const int cuda = scenario_now->cuda;
    pthread_mutex_unlock(&scenario_mutex);
    return cuda;
}

void scenario_text(const char *which, char out[TEXT_SIZE])
{
    pthread_mutex_lock(&scenario_mutex);
    snprintf(out, TEXT_SIZE, "%s", strcmp(which, "nvml") == 0 ? scenario_now->nvml : scenario_now->driver);
    pthread_mutex_unlock(&scenario_mutex);
}
