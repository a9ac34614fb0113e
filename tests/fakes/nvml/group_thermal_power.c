/* Temperatures, power, energy, fans. */
#include "fake.h"

KEY(temperature_c, NUMBER, "32");
KEY(memory_temperature_c, NUMBER, "38");
KEY(temperature_margin_c, NUMBER, NULL); /* absent: what is left to temperature_gpu_max_c */
KEY(temperature_shutdown_c, NUMBER, "95");
KEY(temperature_slowdown_c, NUMBER, "89");
KEY(temperature_memory_max_c, NUMBER, "95");
KEY(temperature_gpu_max_c, NUMBER, "87");
KEY(tlimit_shutdown_c, NUMBER, "-8"); /* offsets from the maximum operating temperature */
KEY(tlimit_slowdown_c, NUMBER, "-2");
KEY(tlimit_memory_max_c, NUMBER, "0");
KEY(tlimit_gpu_max_c, NUMBER, "0");
KEY(power_mw, NUMBER, "70000");
KEY(power_average_mw, NUMBER, "=power_mw");
KEY(power_limit_mw, NUMBER, "700000");
KEY(power_limit_default_mw, NUMBER, "700000");
KEY(power_min_mw, NUMBER, "200000");
KEY(power_max_mw, NUMBER, "700000");
KEY(power_management, FLAG, "1");
KEY(energy_mj, NUMBER, "0");
KEY(fan_percent, NUMBER, "unsupported"); /* SXM boards have none */
KEY(fans, NUMBER, "0");

FIELD(82, key_memory_temperature_c, VALUE_UNSIGNED_INT);
FIELD(83, key_energy_mj, VALUE_UNSIGNED_LONG_LONG);
FIELD(185, key_power_average_mw, VALUE_UNSIGNED_INT);
FIELD(186, key_power_mw, VALUE_UNSIGNED_INT);
FIELD(187, key_power_min_mw, VALUE_UNSIGNED_INT);
FIELD(188, key_power_max_mw, VALUE_UNSIGNED_INT);
FIELD(189, key_power_limit_default_mw, VALUE_UNSIGNED_INT);
FIELD(190, key_power_limit_mw, VALUE_UNSIGNED_INT);
FIELD(191, key_energy_mj, VALUE_UNSIGNED_LONG_LONG);
FIELD(192, key_power_limit_mw, VALUE_UNSIGNED_INT);
FIELD(193, key_tlimit_shutdown_c, VALUE_SIGNED_INT);
FIELD(194, key_tlimit_slowdown_c, VALUE_SIGNED_INT);
FIELD(195, key_tlimit_memory_max_c, VALUE_SIGNED_INT);
FIELD(196, key_tlimit_gpu_max_c, VALUE_SIGNED_INT);

GPU_UNSIGNED(nvmlDeviceGetEnforcedPowerLimit, key_power_limit_mw)
GPU_UNSIGNED(nvmlDeviceGetPowerManagementLimit, key_power_limit_mw)
GPU_UNSIGNED(nvmlDeviceGetPowerManagementDefaultLimit, key_power_limit_default_mw)
GPU_UNSIGNED(nvmlDeviceGetPowerManagementMode, key_power_management)
GPU_ULONGLONG(nvmlDeviceGetTotalEnergyConsumption, key_energy_mj)
GPU_UNSIGNED(nvmlDeviceGetFanSpeed, key_fan_percent)
GPU_UNSIGNED(nvmlDeviceGetNumFans, key_fans)

/* A 1 s average since Ampere, except GA100, which has no average. */
NVML nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *out)
{
    ENTER_GPU(nvmlDeviceGetPowerUsage, device);
    const nvmlReturn_t result = answer_unsigned(gpu, &key_power_average_mw, out);
    return result == NVML_ERROR_NOT_SUPPORTED ? answer_unsigned(gpu, &key_power_mw, out) : result;
}

NVML nvmlReturn_t nvmlDeviceGetFanSpeed_v2(nvmlDevice_t device, unsigned int fan, unsigned int *out)
{
    ENTER_GPU(nvmlDeviceGetFanSpeed_v2, device);
    (void)fan;
    return answer_unsigned(gpu, &key_fan_percent, out);
}

NVML nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *min,
                                                               unsigned int *max)
{
    ENTER_GPU(nvmlDeviceGetPowerManagementLimitConstraints, device);
    const nvmlReturn_t result = answer_unsigned(gpu, &key_power_min_mw, min);
    return result == NVML_SUCCESS ? answer_unsigned(gpu, &key_power_max_mw, max) : result;
}

static nvmlReturn_t temperature(int gpu, unsigned int sensor, unsigned int *out)
{
    return sensor == 0 ? answer_unsigned(gpu, &key_temperature_c, out) : NVML_ERROR_INVALID_ARGUMENT;
}

NVML nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor, unsigned int *out)
{
    ENTER_GPU(nvmlDeviceGetTemperature, device);
    return temperature(gpu, sensor, out);
}

NVML nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_v1_t *out)
{
    ENTER_GPU(nvmlDeviceGetTemperatureV, device);
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (out->version != VERSION_WORD(nvmlTemperature_v1_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return temperature(gpu, out->sensorType, (unsigned int *)&out->temperature);
}

static nvmlReturn_t margin(int gpu, long long *out)
{
    if (!is_absent(gpu, &key_temperature_margin_c))
        return number_of(gpu, &key_temperature_margin_c, out);
    long long now, max;
    nvmlReturn_t result = number_of(gpu, &key_temperature_c, &now);
    if (result == NVML_SUCCESS)
        result = number_of(gpu, &key_temperature_gpu_max_c, &max);
    if (result == NVML_SUCCESS)
        *out = max - now;
    return result;
}

NVML nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_v1_t *out)
{
    ENTER_GPU(nvmlDeviceGetMarginTemperature, device);
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (out->version != VERSION_WORD(nvmlMarginTemperature_v1_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    long long left;
    const nvmlReturn_t result = margin(gpu, &left);
    if (result == NVML_SUCCESS)
        out->marginTemperature = (int)left;
    return result;
}

NVML nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned int which,
                                                    unsigned int *out)
{
    ENTER_GPU(nvmlDeviceGetTemperatureThreshold, device);
    static const struct key *const thresholds[] = {
        &key_temperature_shutdown_c, &key_temperature_slowdown_c, &key_temperature_memory_max_c,
        &key_temperature_gpu_max_c};
    if (which >= sizeof thresholds / sizeof thresholds[0])
        return NVML_ERROR_NOT_SUPPORTED;
    return answer_unsigned(gpu, thresholds[which], out);
}
