/* NVML's structure of an event, laid out as pynvml lays it out (tests/unit/test_nvml_fake_abi.py). */
#ifndef FAKE_NVML_ABI_EVENTS_H
#define FAKE_NVML_ABI_EVENTS_H

#include "nvml_abi.h"

enum { NVML_ERROR_TIMEOUT = 10, NVML_ERROR_INSUFFICIENT_RESOURCES = 23 };

typedef struct {
    nvmlDevice_t device;
    unsigned long long eventType, eventData;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlEventData_t;

_Static_assert(sizeof(nvmlEventData_t) == 32, "nvmlEventData_t");

#endif
