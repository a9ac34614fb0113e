/*
 * Events. gpu.N.xids is the list of all that have happened: "79, 31", or "0x10:0" for another type than Xid. What
 * is appended while a GPU is registered is delivered, once per event set.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "abi_events.h"
#include "fake.h"

enum { MAX_SETS = 16, TYPE_XID = 0x8, NO_INSTANCE = -1 };

KEY(xids, TEXT, "");

typedef struct event_set {
    bool is_used;
    unsigned long long types[MAX_GPUS];
    unsigned int delivered[MAX_GPUS];
} *nvmlEventSet_t;

static struct event_set sets[MAX_SETS];
static pthread_mutex_t sets_mutex = PTHREAD_MUTEX_INITIALIZER;

/* Number `wanted` of the list; false when it is not that long. Counts the items when out is NULL. */
static bool nth(int gpu, unsigned int wanted, unsigned int *count, nvmlEventData_t *out)
{
    char list[TEXT_SIZE];
    unsigned int seen = 0;
    bool found = false;
    if (text_of(gpu, &key_xids, list) == NVML_SUCCESS) {
        char *cursor = list;
        for (char *item; (item = strsep(&cursor, ",")) != NULL;) {
            char *end;
            item += strspn(item, " \t");
            if (*item == '\0')
                continue;
            if (seen++ == wanted && out != NULL) {
                const unsigned long long number = strtoull(item, &end, 0);
                *out = (nvmlEventData_t){.device = &fake_devices[gpu], .eventType = TYPE_XID, .eventData = number,
                                         .gpuInstanceId = (unsigned int)NO_INSTANCE,
                                         .computeInstanceId = (unsigned int)NO_INSTANCE};
                if (*end == ':') {
                    out->eventType = number;
                    out->eventData = strtoull(end + 1, NULL, 0);
                }
                found = true;
            }
        }
    }
    if (count != NULL)
        *count = seen;
    return found;
}

NVML nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *out)
{
    ENTER_SYSTEM(nvmlEventSetCreate);
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    pthread_mutex_lock(&sets_mutex);
    struct event_set *chosen = NULL;
    for (int i = 0; i < MAX_SETS && chosen == NULL; i++)
        if (!sets[i].is_used)
            chosen = &sets[i];
    if (chosen != NULL)
        *chosen = (struct event_set){.is_used = true};
    pthread_mutex_unlock(&sets_mutex);
    *out = chosen;
    return chosen != NULL ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_RESOURCES;
}

NVML nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    ENTER_SYSTEM(nvmlEventSetFree);
    if (set < sets || set >= sets + MAX_SETS || !set->is_used)
        fake_abort(0, "nvmlEventSetFree was given %p, which is no event set", (void *)set);
    set->is_used = false;
    return NVML_SUCCESS;
}

NVML nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    ENTER_GPU(nvmlDeviceRegisterEvents, device);
    if (set < sets || set >= sets + MAX_SETS || !set->is_used)
        fake_abort(0, "nvmlDeviceRegisterEvents was given %p, which is no event set", (void *)set);
    set->types[gpu] |= types;
    nth(gpu, 0, &set->delivered[gpu], NULL); /* what happened before is not recorded */
    return NVML_SUCCESS;
}

static bool next_event(nvmlEventSet_t set, nvmlEventData_t *out)
{
    for (int gpu = 0; gpu < (int)scenario_count(); gpu++)
        while (set->types[gpu] != 0 && nth(gpu, set->delivered[gpu], NULL, out)) {
            set->delivered[gpu]++;
            return true;
        }
    return false;
}

static nvmlReturn_t wait(nvmlEventSet_t set, nvmlEventData_t *out, unsigned int timeout_ms)
{
    if (set < sets || set >= sets + MAX_SETS || !set->is_used || out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int waited_ms = 0;; waited_ms++) {
        scenario_refresh();
        if (next_event(set, out))
            return NVML_SUCCESS;
        if (waited_ms >= timeout_ms)
            return NVML_ERROR_TIMEOUT;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

NVML nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *out, unsigned int timeout_ms)
{
    ENTER_SYSTEM(nvmlEventSetWait);
    return wait(set, out, timeout_ms);
}

NVML nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *out, unsigned int timeout_ms)
{
    ENTER_SYSTEM(nvmlEventSetWait_v2);
    return wait(set, out, timeout_ms);
}
