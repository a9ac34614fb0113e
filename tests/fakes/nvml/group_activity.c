/* How busy: utilization and clocks. */
#include "fake.h"

KEY(busy_percent, NUMBER, "0");
KEY(memory_busy_percent, NUMBER, "0");
KEY(encoder_percent, NUMBER, "0");
KEY(decoder_percent, NUMBER, "0");
KEY(sm_clock_mhz, NUMBER, "345");
KEY(sm_clock_max_mhz, NUMBER, "1980");
KEY(graphics_clock_mhz, NUMBER, "=sm_clock_mhz");
KEY(graphics_clock_max_mhz, NUMBER, "=sm_clock_max_mhz");
KEY(memory_clock_mhz, NUMBER, "2619");
KEY(memory_clock_max_mhz, NUMBER, "2619");
KEY(video_clock_mhz, NUMBER, "765");
KEY(video_clock_max_mhz, NUMBER, "1545");
KEY(performance_state, NUMBER, "0");

static const struct key *const current_clocks[CLOCK_TYPES] = {
    [CLOCK_GRAPHICS] = &key_graphics_clock_mhz,
    [CLOCK_SM] = &key_sm_clock_mhz,
    [CLOCK_MEMORY] = &key_memory_clock_mhz,
    [CLOCK_VIDEO] = &key_video_clock_mhz,
};
static const struct key *const max_clocks[CLOCK_TYPES] = {
    [CLOCK_GRAPHICS] = &key_graphics_clock_max_mhz,
    [CLOCK_SM] = &key_sm_clock_max_mhz,
    [CLOCK_MEMORY] = &key_memory_clock_max_mhz,
    [CLOCK_VIDEO] = &key_video_clock_max_mhz,
};

GPU_UNSIGNED(nvmlDeviceGetPerformanceState, key_performance_state)
GPU_UNSIGNED(nvmlDeviceGetPowerState, key_performance_state)

NVML nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out)
{
    ENTER_GPU(nvmlDeviceGetUtilizationRates, device);
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    const nvmlReturn_t result = answer_unsigned(gpu, &key_busy_percent, &out->gpu);
    return result == NVML_SUCCESS ? answer_unsigned(gpu, &key_memory_busy_percent, &out->memory) : result;
}

static nvmlReturn_t codec(int gpu, const struct key *key, unsigned int *percent, unsigned int *period_us)
{
    if (period_us == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *period_us = 167000;
    return answer_unsigned(gpu, key, percent);
}

NVML nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned int *percent,
                                                  unsigned int *period_us)
{
    ENTER_GPU(nvmlDeviceGetEncoderUtilization, device);
    return codec(gpu, &key_encoder_percent, percent, period_us);
}

NVML nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned int *percent,
                                                  unsigned int *period_us)
{
    ENTER_GPU(nvmlDeviceGetDecoderUtilization, device);
    return codec(gpu, &key_decoder_percent, percent, period_us);
}

static nvmlReturn_t clock_from(const struct key *const keys[CLOCK_TYPES], int gpu, unsigned int type,
                               unsigned int *out)
{
    return type < CLOCK_TYPES ? answer_unsigned(gpu, keys[type], out) : NVML_ERROR_INVALID_ARGUMENT;
}

NVML nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *out)
{
    ENTER_GPU(nvmlDeviceGetClockInfo, device);
    return clock_from(current_clocks, gpu, type, out);
}

NVML nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *out)
{
    ENTER_GPU(nvmlDeviceGetMaxClockInfo, device);
    return clock_from(max_clocks, gpu, type, out);
}

NVML nvmlReturn_t nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t device, unsigned int type,
                                                     unsigned int *out)
{
    ENTER_GPU(nvmlDeviceGetMaxCustomerBoostClock, device);
    return clock_from(max_clocks, gpu, type, out);
}

NVML nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, unsigned int type, unsigned int *out)
{
    ENTER_GPU(nvmlDeviceGetApplicationsClock, device);
    return clock_from(max_clocks, gpu, type, out);
}

NVML nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, unsigned int type,
                                                        unsigned int *out)
{
    ENTER_GPU(nvmlDeviceGetDefaultApplicationsClock, device);
    return clock_from(max_clocks, gpu, type, out);
}

NVML nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, unsigned int type, unsigned int id,
                                     unsigned int *out)
{
    ENTER_GPU(nvmlDeviceGetClock, device);
    if (id > CLOCK_ID_BOOST_MAX)
        return NVML_ERROR_INVALID_ARGUMENT;
    return clock_from(id == CLOCK_ID_CURRENT ? current_clocks : max_clocks, gpu, type, out);
}
