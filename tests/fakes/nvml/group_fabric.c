/* The NVLink fabric: a GPU that Fabric Manager has registered, in a machine that is no part of a larger one. */
#include <stdio.h>
#include <string.h>

#include "abi_fabric.h"
#include "fake.h"

KEY(fabric_state, NUMBER, "3"); /* 0 not supported, 1 not started, 2 in progress, 3 completed */
KEY(fabric_status, NUMBER, "0"); /* an NVML error, once completed */
KEY(fabric_clique, NUMBER, "0");
KEY(fabric_cluster_uuid, TEXT, "00000000-0000-0000-0000-000000000000");
KEY(fabric_health_mask, MASK, "0x1aa"); /* every group says "false", the configuration has no fault */
KEY(fabric_health_summary, NUMBER, "1"); /* 1 healthy, 2 unhealthy, 3 limited capacity */
KEY(fabric_version, NUMBER, "3");        /* the newest structure that this driver fills */

static void parse_uuid(int gpu, const char *text, unsigned char out[16])
{
    const char *at = text;
    for (int i = 0; i < 16; i++) {
        unsigned int byte;
        at += *at == '-';
        if (sscanf(at, "%2x", &byte) != 1)
            fake_abort(0, "gpu.%d.fabric_cluster_uuid is a UUID, not \"%s\"", gpu, text);
        out[i] = (unsigned char)byte;
        at += 2;
    }
}

static nvmlReturn_t fill(int gpu, nvmlGpuFabricInfo_v3_t *out)
{
    long long state = 0, status = 0, clique = 0, mask = 0, summary = 0;
    char uuid[TEXT_SIZE];
    const nvmlReturn_t result = number_of(gpu, &key_fabric_state, &state);
    if (result != NVML_SUCCESS)
        return result;
    number_of(gpu, &key_fabric_status, &status);
    number_of(gpu, &key_fabric_clique, &clique);
    number_of(gpu, &key_fabric_health_mask, &mask);
    number_of(gpu, &key_fabric_health_summary, &summary);
    if (text_of(gpu, &key_fabric_cluster_uuid, uuid) == NVML_SUCCESS)
        parse_uuid(gpu, uuid, out->clusterUuid);
    out->state = (unsigned char)state;
    out->status = (nvmlReturn_t)status;
    out->cliqueId = (unsigned int)clique;
    out->healthMask = (unsigned int)mask;
    out->healthSummary = (unsigned char)summary;
    return NVML_SUCCESS;
}

NVML nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, void *out)
{
    ENTER_GPU(nvmlDeviceGetGpuFabricInfoV, device);
    long long newest = 0;
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlGpuFabricInfo_v3_t info = {.version = *(unsigned int *)out};
    number_of(gpu, &key_fabric_version, &newest);
    const bool is_v3 = info.version == VERSION_WORD(nvmlGpuFabricInfo_v3_t, 3) && newest >= 3;
    if (!is_v3 && (info.version != VERSION_WORD(nvmlGpuFabricInfo_v2_t, 2) || newest < 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const nvmlReturn_t result = fill(gpu, &info);
    if (result == NVML_SUCCESS)
        memcpy(out, &info, is_v3 ? sizeof(nvmlGpuFabricInfo_v3_t) : sizeof(nvmlGpuFabricInfo_v2_t));
    return result;
}

NVML nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *out)
{
    ENTER_GPU(nvmlDeviceGetGpuFabricInfo, device);
    nvmlGpuFabricInfo_v3_t info = {.version = 0};
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    const nvmlReturn_t result = fill(gpu, &info);
    if (result != NVML_SUCCESS)
        return result;
    *out = (nvmlGpuFabricInfo_t){.status = info.status, .cliqueId = info.cliqueId, .state = info.state};
    memcpy(out->clusterUuid, info.clusterUuid, sizeof out->clusterUuid);
    return NVML_SUCCESS;
}
