/* Initialisation, versions, error texts. */
#include <stdio.h>
#include <string.h>

#include "gate.h"

static nvmlReturn_t initialize(struct call *call)
{
    const nvmlReturn_t result = enter_uninitialized(call);
    if (result == NVML_SUCCESS)
        gate_open();
    return result;
}

NVML nvmlReturn_t nvmlInit(void)
{
    DECLARE_CALL(nvmlInit);
    return initialize(&this_call);
}

NVML nvmlReturn_t nvmlInit_v2(void)
{
    DECLARE_CALL(nvmlInit_v2);
    return initialize(&this_call);
}

NVML nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    DECLARE_CALL(nvmlInitWithFlags);
    (void)flags;
    return initialize(&this_call);
}

NVML nvmlReturn_t nvmlShutdown(void)
{
    DECLARE_CALL(nvmlShutdown);
    const nvmlReturn_t result = enter_uninitialized(&this_call);
    if (result != NVML_SUCCESS)
        return result;
    return gate_close() ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

NVML nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned int size)
{
    ENTER_SYSTEM(nvmlSystemGetDriverVersion);
    char text[TEXT_SIZE];
    scenario_text("driver", text);
    return copy_text(text, out, size);
}

NVML nvmlReturn_t nvmlSystemGetNVMLVersion(char *out, unsigned int size)
{
    ENTER_SYSTEM(nvmlSystemGetNVMLVersion);
    char text[TEXT_SIZE];
    scenario_text("nvml", text);
    return copy_text(text, out, size);
}

static nvmlReturn_t cuda_version(int *out)
{
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *out = scenario_cuda();
    return NVML_SUCCESS;
}

NVML nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *out)
{
    ENTER_SYSTEM(nvmlSystemGetCudaDriverVersion);
    return cuda_version(out);
}

NVML nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *out)
{
    ENTER_SYSTEM(nvmlSystemGetCudaDriverVersion_v2);
    return cuda_version(out);
}

/* The first word of a process's command line, as NVML gives it; works for processes without a GPU as well. */
NVML nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *out, unsigned int size)
{
    ENTER_SYSTEM(nvmlSystemGetProcessName);
    char path[64], name[1024] = "";
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return NVML_ERROR_NOT_FOUND;
    const size_t got = fread(name, 1, sizeof name - 1, file);
    fclose(file);
    name[got] = '\0';
    return copy_text(name, out, size);
}

NVML const char *nvmlErrorString(nvmlReturn_t result)
{
    static const char *const texts[] = {
        "The operation was successful", "Uninitialized", "Invalid Argument", "Not Supported",
        "Insufficient Permissions", "Already Initialized", "Not Found", "Insufficient Size",
        "Insufficient External Power", "Driver Not Loaded", "Timeout", "Interrupt Request Issue",
        "NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM", "GPU is lost",
        "GPU requires reset", "The operating system has blocked the request",
        "RM has detected an NVML/RM version mismatch.", "GPU is currently in use",
        "Insufficient memory", "No data", "vGPU ECC operation not supported", "Insufficient Resources",
        "Requested frequency is not supported", "Argument version mismatch", "Deprecated", "Not ready",
        "GPU not found", "Invalid state", "Reset type not supported",
    };
    DECLARE_CALL(nvmlErrorString);
    count_call(&this_call, NO_GPU);
    if (result < 0 || (size_t)result >= sizeof texts / sizeof texts[0])
        return "Unknown Error";
    return texts[result];
}
