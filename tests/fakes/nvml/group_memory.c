/* Memory: total = used + reserved + free. */
#include "fake.h"

KEY(memory_total_bytes, NUMBER, "85520809984"); /* 81559 MiB, as H100 80GB reports */
KEY(memory_used_bytes, NUMBER, "0");
KEY(memory_reserved_bytes, NUMBER, "599785472"); /* 572 MiB: held by the driver and firmware */
KEY(bar1_total_bytes, NUMBER, "137438953472");
KEY(bar1_used_bytes, NUMBER, "1048576");
KEY(memory_bus_width_bits, NUMBER, "5120");

GPU_UNSIGNED(nvmlDeviceGetMemoryBusWidth, key_memory_bus_width_bits)

struct memory {
    unsigned long long total, reserved, used;
};

static nvmlReturn_t memory_of(int gpu, struct memory *out)
{
    nvmlReturn_t result = answer_ulonglong(gpu, &key_memory_total_bytes, &out->total);
    if (result == NVML_SUCCESS)
        result = answer_ulonglong(gpu, &key_memory_used_bytes, &out->used);
    if (result == NVML_SUCCESS)
        result = answer_ulonglong(gpu, &key_memory_reserved_bytes, &out->reserved);
    return result;
}

/* Version 1 knows no reserved memory and counts it as used. */
NVML nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out)
{
    ENTER_GPU(nvmlDeviceGetMemoryInfo, device);
    struct memory memory;
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    const nvmlReturn_t result = memory_of(gpu, &memory);
    if (result != NVML_SUCCESS)
        return result;
    const unsigned long long used = memory.used + memory.reserved;
    *out = (nvmlMemory_t){.total = memory.total, .used = used, .free = memory.total - used};
    return NVML_SUCCESS;
}

NVML nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out)
{
    ENTER_GPU(nvmlDeviceGetMemoryInfo_v2, device);
    struct memory memory;
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (out->version != VERSION_WORD(nvmlMemory_v2_t, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const nvmlReturn_t result = memory_of(gpu, &memory);
    if (result != NVML_SUCCESS)
        return result;
    out->total = memory.total;
    out->reserved = memory.reserved;
    out->used = memory.used;
    out->free = memory.total - memory.used - memory.reserved;
    return NVML_SUCCESS;
}

NVML nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *out)
{
    ENTER_GPU(nvmlDeviceGetBAR1MemoryInfo, device);
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = answer_ulonglong(gpu, &key_bar1_total_bytes, &out->bar1Total);
    if (result == NVML_SUCCESS)
        result = answer_ulonglong(gpu, &key_bar1_used_bytes, &out->bar1Used);
    if (result == NVML_SUCCESS)
        out->bar1Free = out->bar1Total - out->bar1Used;
    return result;
}
