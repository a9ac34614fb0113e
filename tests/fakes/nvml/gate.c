/* The way into every function: count it, obey the scenario's call.* lines, check that NVML is initialised. */
#include <stdio.h>
#include <time.h>

#include "gate.h"

static const double BLOCK_POLL_S = 0.02;
static int initialized_count;
static int generation;

struct fake_device fake_devices[MAX_HANDLES];

__attribute__((constructor)) static void number_everything(void)
{
    for (int i = 0; i < MAX_HANDLES; i++)
        fake_devices[i].index = i;
    for (struct key **key = __start_fake_keys; key < __stop_fake_keys; key++)
        (*key)->column = (int)(key - __start_fake_keys);
    for (struct call **call = __start_fake_calls; call < __stop_fake_calls; call++)
        (*call)->row = (int)(call - __start_fake_calls);
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void sleep_s(double seconds)
{
    struct timespec pause = {.tv_sec = 0, .tv_nsec = (long)(seconds * 1e9)};
    nanosleep(&pause, NULL);
}

/* Blocks as long as the scenario, re-read meanwhile, says so; then what the scenario says it returns. */
static nvmlReturn_t obey(const struct call *call, int gpu)
{
    const double started_s = now_s();
    for (;;) {
        scenario_refresh();
        const struct injection injection = scenario_injection(call, gpu);
        const double left_s = injection.block_s - (now_s() - started_s);
        if (injection.block_s <= 0 || left_s <= 0)
            return injection.result;
        sleep_s(left_s < BLOCK_POLL_S ? left_s : BLOCK_POLL_S);
    }
}

nvmlReturn_t enter_uninitialized(struct call *call)
{
    count_call(call, NO_GPU);
    return obey(call, NO_GPU);
}

nvmlReturn_t enter(struct call *call, int gpu)
{
    if (__atomic_load_n(&initialized_count, __ATOMIC_RELAXED) == 0)
        return NVML_ERROR_UNINITIALIZED;
    gpu = gpu_behind(gpu); /* a MIG device is counted, blocked and lost with its GPU */
    count_call(call, gpu);
    const nvmlReturn_t injected = obey(call, gpu);
    if (injected == NVML_SUCCESS && gpu >= (int)scenario_count())
        return NVML_ERROR_GPU_IS_LOST; /* the scenario's count shrank under a handle */
    return injected;
}

int gpu_of(const struct call *call, nvmlDevice_t device)
{
    if (device < fake_devices || device >= fake_devices + MAX_HANDLES) /* the real library crashes */
        fake_abort(0, "%s was given %p, which is no device handle", call->name, (void *)device);
    return device->index;
}

int init_generation(void)
{
    return __atomic_load_n(&generation, __ATOMIC_RELAXED);
}

void gate_open(void)
{
    __atomic_add_fetch(&generation, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&initialized_count, 1, __ATOMIC_RELAXED);
}

bool gate_close(void)
{
    int count = __atomic_load_n(&initialized_count, __ATOMIC_RELAXED);
    while (count > 0) {
        if (__atomic_compare_exchange_n(&initialized_count, &count, count - 1, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED))
            return true;
    }
    return false;
}
