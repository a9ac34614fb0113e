/* Which GPU is which: handles, names, serial numbers, PCI addresses. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "fake.h"
#include "mig.h"

KEY(name, TEXT, "NVIDIA H100 80GB HBM3");
KEY(uuid, TEXT, "GPU-5a4e0001-0000-4000-8000-%012u");
KEY(serial, TEXT, "165%010u");
KEY(vbios, TEXT, "96.00.A5.00.01");
KEY(pci_bus_id, TEXT, "00000000:%02X:00.0", .index_offset = 0x1b);
KEY(gsp_firmware, TEXT, "570.86.15"); /* unsupported: the driver runs without it */
KEY(minor, NUMBER, "%u");
KEY(board_part_number, TEXT, "692-2G520-0200-000");
KEY(brand, NUMBER, "14");       /* NVML_BRAND_NVIDIA */
KEY(architecture, NUMBER, "9"); /* NVML_DEVICE_ARCH_HOPPER */
KEY(compute_capability_major, NUMBER, "9");
KEY(compute_capability_minor, NUMBER, "0");
KEY(cores, NUMBER, "16896");

GPU_TEXT(nvmlDeviceGetName, key_name)
GPU_TEXT(nvmlDeviceGetUUID, key_uuid)
GPU_TEXT(nvmlDeviceGetSerial, key_serial)
GPU_TEXT(nvmlDeviceGetVbiosVersion, key_vbios)
GPU_TEXT(nvmlDeviceGetBoardPartNumber, key_board_part_number)
GPU_UNSIGNED(nvmlDeviceGetMinorNumber, key_minor)
GPU_UNSIGNED(nvmlDeviceGetBrand, key_brand)
GPU_UNSIGNED(nvmlDeviceGetArchitecture, key_architecture)
GPU_UNSIGNED(nvmlDeviceGetNumGpuCores, key_cores)

enum { GSP_FIRMWARE_VERSION_SIZE = 0x40 };

NVML nvmlReturn_t nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *out)
{
    ENTER_GPU(nvmlDeviceGetGspFirmwareVersion, device);
    return answer_text(gpu, &key_gsp_firmware, out, GSP_FIRMWARE_VERSION_SIZE);
}

static nvmlReturn_t device_count(unsigned int *out)
{
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *out = scenario_count();
    return NVML_SUCCESS;
}

NVML nvmlReturn_t nvmlDeviceGetCount(unsigned int *out)
{
    ENTER_SYSTEM(nvmlDeviceGetCount);
    return device_count(out);
}

NVML nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *out)
{
    ENTER_SYSTEM(nvmlDeviceGetCount_v2);
    return device_count(out);
}

/* Looking a GPU up is a call on that GPU: a lost one is already refused here. */
static nvmlReturn_t look_up(struct call *call, int index, nvmlReturn_t when_none, nvmlDevice_t *out)
{
    const bool exists = index >= 0 && index < (int)scenario_count();
    const nvmlReturn_t result = enter(call, exists ? index : NO_GPU);
    if (result != NVML_SUCCESS)
        return result;
    if (!exists || out == NULL)
        return when_none;
    *out = &fake_devices[index];
    return NVML_SUCCESS;
}

static nvmlReturn_t look_up_index(struct call *call, unsigned int index, nvmlDevice_t *out)
{
    scenario_refresh();
    return look_up(call, index < MAX_GPUS ? (int)index : NO_GPU, NVML_ERROR_INVALID_ARGUMENT, out);
}

NVML nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *out)
{
    DECLARE_CALL(nvmlDeviceGetHandleByIndex);
    return look_up_index(&this_call, index, out);
}

NVML nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *out)
{
    DECLARE_CALL(nvmlDeviceGetHandleByIndex_v2);
    return look_up_index(&this_call, index, out);
}

static int index_with_text(const struct key *key, const char *wanted)
{
    char text[TEXT_SIZE];
    for (int gpu = 0; gpu < (int)scenario_count(); gpu++)
        if (text_of(gpu, key, text) == NVML_SUCCESS && strcmp(text, wanted) == 0)
            return gpu;
    return NO_GPU;
}

NVML nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out)
{
    DECLARE_CALL(nvmlDeviceGetHandleByUUID);
    scenario_refresh();
    const int gpu = index_with_text(&key_uuid, uuid);
    const int instance = gpu == NO_GPU ? mig_with_text(&key_uuid, uuid) : NO_GPU;
    const nvmlReturn_t result =
        look_up(&this_call, instance == NO_GPU ? gpu : gpu_behind(instance), NVML_ERROR_NOT_FOUND, out);
    if (result == NVML_SUCCESS && instance != NO_GPU)
        *out = &fake_devices[instance];
    return result;
}

NVML nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *out)
{
    DECLARE_CALL(nvmlDeviceGetHandleBySerial);
    scenario_refresh();
    return look_up(&this_call, index_with_text(&key_serial, serial), NVML_ERROR_NOT_FOUND, out);
}

struct address {
    unsigned int domain, bus, device, function;
};

static bool parse_address(const char *text, struct address *out)
{
    *out = (struct address){0};
    return sscanf(text, "%x:%x:%x.%x", &out->domain, &out->bus, &out->device, &out->function) >= 3;
}

static nvmlReturn_t address_of(int gpu, struct address *out)
{
    char text[TEXT_SIZE];
    const nvmlReturn_t result = text_of(gpu, &key_pci_bus_id, text);
    if (result == NVML_SUCCESS && !parse_address(text, out))
        fake_abort(0, "gpu.%d.pci_bus_id is DOMAIN:BUS:DEVICE.FUNCTION, not \"%s\"", gpu, text);
    return result;
}

static int index_with_address(const char *text)
{
    struct address wanted, own;
    if (!parse_address(text, &wanted))
        return NO_GPU;
    for (int gpu = 0; gpu < (int)scenario_count(); gpu++)
        if (address_of(gpu, &own) == NVML_SUCCESS && memcmp(&wanted, &own, sizeof own) == 0)
            return gpu;
    return NO_GPU;
}

NVML nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *address, nvmlDevice_t *out)
{
    DECLARE_CALL(nvmlDeviceGetHandleByPciBusId);
    scenario_refresh();
    return look_up(&this_call, index_with_address(address), NVML_ERROR_NOT_FOUND, out);
}

NVML nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *address, nvmlDevice_t *out)
{
    DECLARE_CALL(nvmlDeviceGetHandleByPciBusId_v2);
    scenario_refresh();
    return look_up(&this_call, index_with_address(address), NVML_ERROR_NOT_FOUND, out);
}

NVML nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *out)
{
    ENTER_GPU(nvmlDeviceGetIndex, device);
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *out = (unsigned int)gpu;
    return NVML_SUCCESS;
}

enum { H100_SXM_DEVICE_ID = 0x233010DE, H100_SXM_SUBSYSTEM_ID = 0x16C110DE };

static nvmlReturn_t pci_info(int gpu, nvmlPciInfo_t *out)
{
    struct address at;
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    const nvmlReturn_t result = address_of(gpu, &at);
    if (result != NVML_SUCCESS)
        return result;
    *out = (nvmlPciInfo_t){.domain = at.domain, .bus = at.bus, .device = at.device,
                           .pciDeviceId = H100_SXM_DEVICE_ID, .pciSubSystemId = H100_SXM_SUBSYSTEM_ID};
    snprintf(out->busIdLegacy, sizeof out->busIdLegacy, "%04X:%02X:%02X.%X", at.domain & 0xffff,
             at.bus & 0xff,
             at.device & 0xff, at.function & 0xf);
    snprintf(out->busId, sizeof out->busId, "%08X:%02X:%02X.%X", at.domain, at.bus, at.device, at.function);
    return NVML_SUCCESS;
}

/* Unversioned and _v2 had other members at the end; they are as large and start with the same ones. */
NVML nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *out)
{
    ENTER_GPU(nvmlDeviceGetPciInfo, device);
    return pci_info(gpu, out);
}

NVML nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *out)
{
    ENTER_GPU(nvmlDeviceGetPciInfo_v2, device);
    return pci_info(gpu, out);
}

NVML nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *out)
{
    ENTER_GPU(nvmlDeviceGetPciInfo_v3, device);
    return pci_info(gpu, out);
}

NVML nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    ENTER_GPU(nvmlDeviceGetCudaComputeCapability, device);
    const nvmlReturn_t result = answer_unsigned(gpu, &key_compute_capability_major, (unsigned int *)major);
    if (result != NVML_SUCCESS)
        return result;
    return answer_unsigned(gpu, &key_compute_capability_minor, (unsigned int *)minor);
}
