/* Modes: persistence, compute, display, driver model. MIG: group_mig.c. */
#include "fake.h"

KEY(persistence, FLAG, "1");
KEY(compute_mode, NUMBER, "0");
KEY(display_active, FLAG, "0");
KEY(display_mode, FLAG, "0");
KEY(driver_model, NUMBER, "unsupported"); /* Windows only */
KEY(gsp_firmware_enabled, FLAG, "1");

GPU_UNSIGNED(nvmlDeviceGetPersistenceMode, key_persistence)
GPU_UNSIGNED(nvmlDeviceGetComputeMode, key_compute_mode)
GPU_UNSIGNED(nvmlDeviceGetDisplayActive, key_display_active)
GPU_UNSIGNED(nvmlDeviceGetDisplayMode, key_display_mode)

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
