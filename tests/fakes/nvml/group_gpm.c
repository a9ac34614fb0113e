/*
 * GPM: what the units of a GPU did between two samples.
 *
 * A sample holds the time integral of every metric, so that a metric computed from two samples is the average of
 * what the scenario said between them, as with the real counters. Samples are checked: one that was freed, was
 * never filled or belongs to another GPU ends the process.
 */
#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "abi_gpm.h"
#include "mig.h"

KEY(gpm_supported, FLAG, "1"); /* Hopper and newer */

enum { METRICS = 17, SAMPLES = 4096, WHOLE_GPU = -1, OWNERS_PER_GPU = 16 };
static const long long SHORTEST_NS = 100 * 1000 * 1000; /* nvml.h: samples are refreshed every 100 ms */

/* gpm.ID: percent (20 and more: MiB/s), "nan", "error N" or "unsupported"; ids: nvml.h NVML_GPM_METRIC_*. */
#define METRIC(id) KEY_NAMED(gpm_##id, "gpm." #id, TEXT, "0");
METRIC(1) METRIC(2) METRIC(3) METRIC(4) METRIC(5) METRIC(6) METRIC(7) METRIC(8) METRIC(9) METRIC(10) METRIC(11)
METRIC(12) METRIC(13) METRIC(20) METRIC(21) METRIC(60) METRIC(61)

static const struct {
    unsigned int id;
    const struct key *key;
} metrics[METRICS] = {
    {1, &key_gpm_1},   {2, &key_gpm_2},   {3, &key_gpm_3},   {4, &key_gpm_4},   {5, &key_gpm_5},   {6, &key_gpm_6},
    {7, &key_gpm_7},   {8, &key_gpm_8},   {9, &key_gpm_9},   {10, &key_gpm_10}, {11, &key_gpm_11}, {12, &key_gpm_12},
    {13, &key_gpm_13}, {20, &key_gpm_20}, {21, &key_gpm_21}, {60, &key_gpm_60}, {61, &key_gpm_61},
};

struct reading {
    nvmlReturn_t result;
    double value; /* of a sample: the integral, value * seconds; NAN when the scenario says so */
};

struct fake_sample {
    enum { NEVER, EMPTY, FILLED, FREED } state;
    int gpu, gpu_instance;
    long long taken_ns;
    struct reading readings[METRICS];
};

/* One GPU or GPU instance: its integrals so far. */
struct owner {
    int gpu, gpu_instance;
    long long last_ns;
    double integrals[METRICS];
};

static struct fake_sample samples[SAMPLES];
static struct owner owners[MAX_GPUS * OWNERS_PER_GPU];
static size_t owner_count;
static pid_t sampling_thread;
static pthread_mutex_t gpm_mutex = PTHREAD_MUTEX_INITIALIZER;

/* Not functions of NVML: counted when the library is used in a way that NVIDIA's does not stand. */
static struct call misuse_too_soon = {.name = "misuse.nvmlGpmSampleGet.within_100_ms"};
static struct call misuse_threads = {.name = "misuse.nvmlGpmSampleGet.from_two_threads"};
REGISTER("fake_calls", struct call, misuse_too_soon);
REGISTER("fake_calls", struct call, misuse_threads);

static long long now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void check_sample(const struct call *call, const struct fake_sample *sample)
{
    if (sample < samples || sample >= samples + SAMPLES || sample->state == NEVER)
        fake_abort(0, "%s was given %p, which is no sample", call->name, (const void *)sample);
    if (sample->state == FREED)
        fake_abort(0, "%s was given a sample that was freed", call->name);
}

NVML nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *out)
{
    ENTER_SYSTEM(nvmlGpmSampleAlloc);
    static size_t next; /* a place is used again only when all have been: late use of a freed one is seen */
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    pthread_mutex_lock(&gpm_mutex);
    for (size_t tried = 0; tried < SAMPLES; tried++) {
        struct fake_sample *sample = &samples[next++ % SAMPLES];
        if (sample->state == EMPTY || sample->state == FILLED)
            continue;
        *sample = (struct fake_sample){.state = EMPTY};
        *out = sample;
        pthread_mutex_unlock(&gpm_mutex);
        return NVML_SUCCESS;
    }
    fake_abort(0, "nvmlGpmSampleAlloc: %d samples are in use", SAMPLES);
}

NVML nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample)
{
    ENTER_SYSTEM(nvmlGpmSampleFree);
    check_sample(&this_call, sample);
    sample->state = FREED;
    return NVML_SUCCESS;
}

NVML nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *out)
{
    ENTER_GPU(nvmlGpmQueryDeviceSupport, device);
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (out->version != GPM_VERSION)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return answer_unsigned(gpu, &key_gpm_supported, &out->isSupportedDevice);
}

static struct reading parse_reading(const char *text)
{
    char *end;
    if (strcmp(text, "nan") == 0)
        return (struct reading){.value = NAN};
    if (strcmp(text, "unsupported") == 0)
        return (struct reading){.result = NVML_ERROR_NOT_SUPPORTED};
    if (strncmp(text, "error ", 6) == 0)
        return (struct reading){.result = (nvmlReturn_t)strtol(text + 6, NULL, 10)};
    const struct reading number = {.value = strtod(text, &end)};
    if (end == text || *end != '\0')
        fake_abort(0, "a GPM metric is a number, \"nan\", \"error N\" or \"unsupported\", not \"%s\"", text);
    return number;
}

static struct reading reading_now(int gpu, int gpu_instance, size_t metric)
{
    char text[TEXT_SIZE];
    if (gpu_instance != WHOLE_GPU) {
        if (!mig_gpm_text(gpu, (unsigned int)gpu_instance, metrics[metric].id, text))
            return (struct reading){.value = 0};
        return parse_reading(text);
    }
    const nvmlReturn_t result = text_of(gpu, metrics[metric].key, text);
    return result == NVML_SUCCESS ? parse_reading(text) : (struct reading){.result = result};
}

static struct owner *owner_of(int gpu, int gpu_instance)
{
    for (size_t i = 0; i < owner_count; i++)
        if (owners[i].gpu == gpu && owners[i].gpu_instance == gpu_instance)
            return &owners[i];
    if (owner_count == sizeof owners / sizeof owners[0])
        fake_abort(0, "more GPU instances than the fake has room for");
    owners[owner_count] = (struct owner){.gpu = gpu, .gpu_instance = gpu_instance};
    return &owners[owner_count++];
}

static void count_misuse(int gpu, long long since_last_ns)
{
    const pid_t thread = gettid();
    if (sampling_thread == 0)
        sampling_thread = thread;
    if (thread != sampling_thread)
        count_call(&misuse_threads, gpu);
    if (since_last_ns <= SHORTEST_NS)
        count_call(&misuse_too_soon, gpu);
}

static nvmlReturn_t take_sample(int gpu, int gpu_instance, struct fake_sample *sample)
{
    pthread_mutex_lock(&gpm_mutex);
    struct owner *owner = owner_of(gpu, gpu_instance);
    const long long at_ns = now_ns();
    const long long since_ns = at_ns - owner->last_ns;
    count_misuse(gpu, since_ns);
    sample->state = FILLED;
    sample->gpu = gpu;
    sample->gpu_instance = gpu_instance;
    sample->taken_ns = at_ns;
    for (size_t i = 0; i < METRICS; i++) {
        const struct reading now = reading_now(gpu, gpu_instance, i);
        if (owner->last_ns != 0 && now.result == NVML_SUCCESS && !isnan(now.value))
            owner->integrals[i] += now.value * 1e-9 * (double)since_ns;
        sample->readings[i].result = now.result;
        sample->readings[i].value = isnan(now.value) ? NAN : owner->integrals[i];
    }
    owner->last_ns = at_ns;
    pthread_mutex_unlock(&gpm_mutex);
    return NVML_SUCCESS;
}

NVML nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample)
{
    ENTER_GPU(nvmlGpmSampleGet, device);
    long long supported;
    check_sample(&this_call, sample);
    if (number_of(gpu, &key_gpm_supported, &supported) != NVML_SUCCESS || !supported)
        return NVML_ERROR_NOT_SUPPORTED;
    return take_sample(gpu, WHOLE_GPU, sample);
}

NVML nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int gpu_instance, nvmlGpmSample_t sample)
{
    ENTER_GPU(nvmlGpmMigSampleGet, device);
    long long supported;
    check_sample(&this_call, sample);
    if (number_of(gpu, &key_gpm_supported, &supported) != NVML_SUCCESS || !supported)
        return NVML_ERROR_NOT_SUPPORTED;
    if (!mig_has_gpu_instance(gpu, gpu_instance))
        return NVML_ERROR_INVALID_ARGUMENT;
    return take_sample(gpu, (int)gpu_instance, sample);
}

static struct reading average(const struct fake_sample *older, const struct fake_sample *newer, unsigned int id)
{
    for (size_t i = 0; i < METRICS; i++) {
        if (metrics[i].id != id)
            continue;
        const double seconds = 1e-9 * (double)(newer->taken_ns - older->taken_ns);
        const struct reading *last = &newer->readings[i];
        if (last->result != NVML_SUCCESS)
            return *last;
        const double before = isnan(older->readings[i].value) ? 0 : older->readings[i].value;
        return (struct reading){.value = (last->value - before) / seconds};
    }
    return (struct reading){.result = NVML_ERROR_NOT_SUPPORTED};
}

NVML nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *get)
{
    DECLARE_CALL(nvmlGpmMetricsGet);
    if (get == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    const struct fake_sample *older = get->sample1, *newer = get->sample2;
    check_sample(&this_call, older);
    check_sample(&this_call, newer);
    const nvmlReturn_t refused = enter(&this_call, newer->gpu);
    if (refused != NVML_SUCCESS)
        return refused;
    if (get->version != GPM_VERSION)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (older->state != FILLED || newer->state != FILLED)
        fake_abort(0, "nvmlGpmMetricsGet was given a sample that was never filled");
    if (older->gpu != newer->gpu || older->gpu_instance != newer->gpu_instance)
        fake_abort(0, "nvmlGpmMetricsGet was given samples of two GPUs");
    if (older->taken_ns >= newer->taken_ns)
        fake_abort(0, "nvmlGpmMetricsGet was given a first sample that is not the older one");
    for (unsigned int i = 0; i < get->numMetrics; i++) {
        const struct reading found = average(older, newer, get->metrics[i].metricId);
        get->metrics[i].nvmlReturn = found.result;
        get->metrics[i].value = found.value;
        get->metrics[i].metricInfo = (nvmlGpmMetricInfo_t){"", "", ""};
    }
    return NVML_SUCCESS;
}
