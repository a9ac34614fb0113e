/* Modes: persistence, compute, display, MIG (without instances). */
#include "fake.h"

KEY(persistence, FLAG, "1");
KEY(compute_mode, NUMBER, "0");
KEY(display_active, FLAG, "0");
KEY(display_mode, FLAG, "0");
KEY(mig_enabled, FLAG, "0");
KEY(mig_pending, FLAG, "=mig_enabled");
KEY(mig_devices_max, NUMBER, "7");
KEY(driver_model, NUMBER, "unsupported"); /* Windows only */
KEY(gsp_firmware_enabled, FLAG, "1");

GPU_UNSIGNED(nvmlDeviceGetPersistenceMode, key_persistence)
GPU_UNSIGNED(nvmlDeviceGetComputeMode, key_compute_mode)
GPU_UNSIGNED(nvmlDeviceGetDisplayActive, key_display_active)
GPU_UNSIGNED(nvmlDeviceGetDisplayMode, key_display_mode)
GPU_UNSIGNED(nvmlDeviceGetMaxMigDeviceCount, key_mig_devices_max)

NVML nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    ENTER_GPU(nvmlDeviceGetMigMode, device);
    const nvmlReturn_t result = answer_unsigned(gpu, &key_mig_enabled, current);
    return result == NVML_SUCCESS ? answer_unsigned(gpu, &key_mig_pending, pending) : result;
}

NVML nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *out)
{
    ENTER_GPU(nvmlDeviceIsMigDeviceHandle, device);
    (void)gpu;
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *out = 0;
    return NVML_SUCCESS;
}

NVML nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index,
                                                      nvmlDevice_t *out)
{
    ENTER_GPU(nvmlDeviceGetMigDeviceHandleByIndex, device);
    (void)gpu, (void)index, (void)out;
    return NVML_ERROR_NOT_FOUND;
}

NVML nvmlReturn_t nvmlDeviceGetDriverModel(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    ENTER_GPU(nvmlDeviceGetDriverModel, device);
    const nvmlReturn_t result = answer_unsigned(gpu, &key_driver_model, current);
    return result == NVML_SUCCESS ? answer_unsigned(gpu, &key_driver_model, pending) : result;
}

NVML nvmlReturn_t nvmlDeviceGetDriverModel_v2(nvmlDevice_t device, unsigned int *current,
                                              unsigned int *pending)
{
    ENTER_GPU(nvmlDeviceGetDriverModel_v2, device);
    const nvmlReturn_t result = answer_unsigned(gpu, &key_driver_model, current);
    return result == NVML_SUCCESS ? answer_unsigned(gpu, &key_driver_model, pending) : result;
}

NVML nvmlReturn_t nvmlDeviceGetGspFirmwareMode(nvmlDevice_t device, unsigned int *enabled,
                                               unsigned int *is_default)
{
    ENTER_GPU(nvmlDeviceGetGspFirmwareMode, device);
    const nvmlReturn_t result = answer_unsigned(gpu, &key_gsp_firmware_enabled, enabled);
    return result == NVML_SUCCESS ? answer_unsigned(gpu, &key_gsp_firmware_enabled, is_default) : result;
}
