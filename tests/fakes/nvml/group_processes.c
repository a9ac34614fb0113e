/*
 * Processes on a GPU. The sizing call (room for too few) returns INSUFFICIENT_SIZE and the number there is:
 * pynvml takes anything else for "no processes", and nvtop writes past its array.
 */
#include <time.h>

#include "fake.h"

KEY(processes, PROCESSES, "");

enum { MAX_PROCESSES = 4096 };
static const unsigned int NO_INSTANCE = 0xffffffff;

/* size: of the structure the caller's version of the function fills. */
static nvmlReturn_t list_processes(int gpu, char kind, unsigned int *count, void *out, size_t size)
{
    static _Thread_local struct process found[MAX_PROCESSES];
    unsigned int total;
    if (count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    const nvmlReturn_t result = processes_of(gpu, &key_processes, kind, found, MAX_PROCESSES, &total);
    if (result != NVML_SUCCESS)
        return result;
    if (total > MAX_PROCESSES)
        fake_abort(0, "gpu.%d.processes: more than %d", gpu, MAX_PROCESSES);
    const unsigned int room = *count;
    *count = total;
    if (total == 0)
        return NVML_SUCCESS;
    if (room < total || out == NULL)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < total; i++) {
        if (size == sizeof(nvmlProcessInfo_v1_t))
            ((nvmlProcessInfo_v1_t *)out)[i] =
                (nvmlProcessInfo_v1_t){.pid = found[i].pid, .usedGpuMemory = found[i].memory_bytes};
        else
            ((nvmlProcessInfo_t *)out)[i] =
                (nvmlProcessInfo_t){.pid = found[i].pid, .usedGpuMemory = found[i].memory_bytes,
                                    .gpuInstanceId = found[i].gpu_instance, .computeInstanceId = NO_INSTANCE};
    }
    return NVML_SUCCESS;
}

#define PROCESS_LIST(function, kind, type)                                               \
    NVML nvmlReturn_t function(nvmlDevice_t device, unsigned int *count, type *out)      \
    {                                                                                    \
        ENTER_GPU(function, device);                                                     \
        return list_processes(gpu, kind, count, out, sizeof *out);                       \
    }

PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses, 'c', nvmlProcessInfo_v1_t)
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v2, 'c', nvmlProcessInfo_t)
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v3, 'c', nvmlProcessInfo_t)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses, 'g', nvmlProcessInfo_v1_t)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, 'g', nvmlProcessInfo_t)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, 'g', nvmlProcessInfo_t)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses, 'm', nvmlProcessInfo_v1_t)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, 'm', nvmlProcessInfo_t)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, 'm', nvmlProcessInfo_t)

/* One sample per compute process, taken now: each is as busy as gpu.N.process_busy_percent says. */
KEY(process_busy_percent, NUMBER, "=busy_percent");
KEY(process_memory_busy_percent, NUMBER, "=memory_busy_percent");

NVML nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *out,
                                                  unsigned int *count, unsigned long long last_seen_us)
{
    ENTER_GPU(nvmlDeviceGetProcessUtilization, device);
    static _Thread_local nvmlProcessInfo_t found[MAX_PROCESSES];
    unsigned int total = MAX_PROCESSES, busy, memory_busy;
    (void)last_seen_us;
    if (count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = list_processes(gpu, 'c', &total, found, sizeof found[0]);
    if (result == NVML_SUCCESS)
        result = answer_unsigned(gpu, &key_process_busy_percent, &busy);
    if (result == NVML_SUCCESS)
        result = answer_unsigned(gpu, &key_process_memory_busy_percent, &memory_busy);
    if (result != NVML_SUCCESS)
        return result;
    const unsigned int room = *count;
    *count = total;
    if (total == 0)
        return NVML_ERROR_NOT_FOUND;
    if (out == NULL || room < total)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const unsigned long long now_us =
        (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000;
    for (unsigned int i = 0; i < total; i++)
        out[i] = (nvmlProcessUtilizationSample_t){
            .pid = found[i].pid, .timeStamp = now_us, .smUtil = busy, .memUtil = memory_busy};
    return NVML_SUCCESS;
}
