/*
 * MIG: the mode of a GPU, and the MIG devices on it.
 *
 *     gpu.0.mig_enabled = 1
 *     gpu.0.mig.0 = 3g.40gb gi=2 used=1073741824 gpm.2=75 gpm.5=nan
 *
 * The first word is the profile; then gi=, ci=, uuid=, used=, total= (bytes) and gpm.ID= (as gpm.ID of a GPU). A MIG
 * device's handle answers name, UUID and memory; everything else is NVML_ERROR_NOT_SUPPORTED on it. One that left
 * the scenario answers NVML_ERROR_INVALID_ARGUMENT. call.* lines of the GPU hold for its MIG devices.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi_gpm.h"
#include "mig.h"

KEY(mig_enabled, FLAG, "0");
KEY(mig_pending, FLAG, "=mig_enabled");
KEY(mig_devices_max, NUMBER, "7");

#define MIG_DEVICE(index) KEY_NAMED(mig_##index, "mig." #index, TEXT, NULL);
MIG_DEVICE(0) MIG_DEVICE(1) MIG_DEVICE(2) MIG_DEVICE(3) MIG_DEVICE(4) MIG_DEVICE(5) MIG_DEVICE(6)
static const struct key *const mig_keys[MIG_SLOTS] = {
    &key_mig_0, &key_mig_1, &key_mig_2, &key_mig_3, &key_mig_4, &key_mig_5, &key_mig_6,
};

GPU_UNSIGNED(nvmlDeviceGetMaxMigDeviceCount, key_mig_devices_max)

NVML nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    ENTER_GPU(nvmlDeviceGetMigMode, device);
    const nvmlReturn_t result = answer_unsigned(gpu, &key_mig_enabled, current);
    return result == NVML_SUCCESS ? answer_unsigned(gpu, &key_mig_pending, pending) : result;
}

/* The line of one MIG device; false when the GPU has none there or is not in MIG mode. */
static bool line_of(int gpu, unsigned int slot, char out[TEXT_SIZE])
{
    long long enabled;
    if (number_of(gpu, &key_mig_enabled, &enabled) != NVML_SUCCESS || !enabled || slot >= MIG_SLOTS)
        return false;
    return !is_absent(gpu, mig_keys[slot]) && text_of(gpu, mig_keys[slot], out) == NVML_SUCCESS;
}

static const char *const OPTIONS[] = {"gi=", "ci=", "uuid=", "used=", "total=", "gpm."};

static void check_option(const char *line, const char *word)
{
    for (size_t i = 0; i < sizeof OPTIONS / sizeof OPTIONS[0]; i++)
        if (strncmp(word, OPTIONS[i], strlen(OPTIONS[i])) == 0 && strchr(word, '=') != NULL)
            return;
    fake_abort(0, "a MIG device is PROFILE [gi=N ci=N uuid=U used=N total=N gpm.ID=V], not \"%s\"", line);
}

/* The value of "option=" in a line; "_" stands for a blank in it ("gpm.5=error_4"). */
static bool option_of(const char *line, const char *option, char out[TEXT_SIZE])
{
    char copy[TEXT_SIZE], *rest = copy;
    bool found = false;
    snprintf(copy, sizeof copy, "%s", line);
    strsep(&rest, " ");
    for (char *word; (word = strsep(&rest, " ")) != NULL;) {
        if (*word == '\0')
            continue;
        check_option(line, word);
        char *value = strchr(word, '=');
        *value++ = '\0';
        if (strcmp(word, option) == 0) {
            snprintf(out, TEXT_SIZE, "%s", value);
            found = true;
        }
    }
    for (char *at = found ? out : NULL; at != NULL && (at = strchr(at, '_')) != NULL;)
        *at = ' ';
    return found;
}

static long long number_option(const char *line, const char *option, long long fallback)
{
    char text[TEXT_SIZE];
    return option_of(line, option, text) ? strtoll(text, NULL, 10) : fallback;
}

/* 40 GiB of "3g.40gb" or "1c.3g.40gb". */
static long long profile_bytes(const char *line)
{
    char profile[TEXT_SIZE];
    snprintf(profile, sizeof profile, "%.*s", (int)strcspn(line, " "), line);
    const char *size = strstr(profile, "g.");
    return size == NULL ? 0 : strtoll(size + 2, NULL, 10) << 30;
}

static unsigned int gpu_instance_of(const char *line, unsigned int slot)
{
    return (unsigned int)number_option(line, "gi", 7 + (long long)slot);
}

bool mig_has_gpu_instance(int gpu, unsigned int gpu_instance)
{
    char line[TEXT_SIZE];
    for (unsigned int slot = 0; slot < MIG_SLOTS; slot++)
        if (line_of(gpu, slot, line) && gpu_instance_of(line, slot) == gpu_instance)
            return true;
    return false;
}

bool mig_gpm_text(int gpu, unsigned int gpu_instance, unsigned int metric, char out[TEXT_SIZE])
{
    char line[TEXT_SIZE], option[32];
    snprintf(option, sizeof option, "gpm.%u", metric);
    for (unsigned int slot = 0; slot < MIG_SLOTS; slot++)
        if (line_of(gpu, slot, line) && gpu_instance_of(line, slot) == gpu_instance)
            return option_of(line, option, out);
    return false;
}

nvmlReturn_t mig_text_of(int handle, const struct key *key, char out[TEXT_SIZE])
{
    const int gpu = gpu_behind(handle);
    const unsigned int slot = (unsigned int)(handle - MAX_GPUS) % MIG_SLOTS;
    char line[TEXT_SIZE], name[TEXT_SIZE];
    if (!line_of(gpu, slot, line))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strcmp(key->name, "uuid") == 0) {
        if (!option_of(line, "uuid", out))
            snprintf(out, TEXT_SIZE, "MIG-5a4e0001-%04d-4000-8000-%012u", gpu, slot);
        return NVML_SUCCESS;
    }
    if (strcmp(key->name, "name") != 0)
        return NVML_ERROR_NOT_SUPPORTED;
    const nvmlReturn_t result = text_of(gpu, key, name);
    if (result == NVML_SUCCESS)
        snprintf(out, TEXT_SIZE, "%.100s MIG %.*s", name, (int)strcspn(line, " "), line);
    return result;
}

int mig_with_text(const struct key *key, const char *wanted)
{
    char text[TEXT_SIZE];
    for (int handle = MAX_GPUS; handle < MAX_GPUS * (1 + MIG_SLOTS); handle++)
        if (gpu_behind(handle) < (int)scenario_count() && mig_text_of(handle, key, text) == NVML_SUCCESS &&
            strcmp(text, wanted) == 0)
            return handle;
    return NO_GPU;
}

nvmlReturn_t mig_number_of(int handle, const struct key *key, long long *out)
{
    const unsigned int slot = (unsigned int)(handle - MAX_GPUS) % MIG_SLOTS;
    char line[TEXT_SIZE];
    if (!line_of(gpu_behind(handle), slot, line))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strcmp(key->name, "memory_total_bytes") == 0)
        *out = number_option(line, "total", profile_bytes(line));
    else if (strcmp(key->name, "memory_used_bytes") == 0)
        *out = number_option(line, "used", 0);
    else if (strcmp(key->name, "memory_reserved_bytes") == 0)
        *out = 0;
    else
        return NVML_ERROR_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

NVML nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *out)
{
    ENTER_GPU(nvmlDeviceIsMigDeviceHandle, device);
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *out = gpu >= MAX_GPUS;
    return NVML_SUCCESS;
}

NVML nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index,
                                                      nvmlDevice_t *out)
{
    ENTER_GPU(nvmlDeviceGetMigDeviceHandleByIndex, device);
    char line[TEXT_SIZE];
    if (out == NULL || gpu >= MAX_GPUS)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!line_of(gpu, index, line))
        return NVML_ERROR_NOT_FOUND;
    *out = &fake_devices[MAX_GPUS + gpu * MIG_SLOTS + (int)index];
    return NVML_SUCCESS;
}

NVML nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *out)
{
    ENTER_GPU(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, device);
    if (out == NULL || gpu < MAX_GPUS)
        return NVML_ERROR_INVALID_ARGUMENT;
    *out = &fake_devices[gpu_behind(gpu)];
    return NVML_SUCCESS;
}

/* The line behind a MIG device's handle, or the error that NVML gives without one. */
static nvmlReturn_t line_behind(int gpu, unsigned int *slot, char line[TEXT_SIZE])
{
    if (gpu < MAX_GPUS)
        return NVML_ERROR_NOT_SUPPORTED;
    *slot = (unsigned int)(gpu - MAX_GPUS) % MIG_SLOTS;
    return line_of(gpu_behind(gpu), *slot, line) ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

NVML nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *out)
{
    ENTER_GPU(nvmlDeviceGetGpuInstanceId, device);
    char line[TEXT_SIZE];
    unsigned int slot;
    const nvmlReturn_t result = line_behind(gpu, &slot, line);
    if (result == NVML_SUCCESS)
        *out = gpu_instance_of(line, slot);
    return result;
}

NVML nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *out)
{
    ENTER_GPU(nvmlDeviceGetComputeInstanceId, device);
    char line[TEXT_SIZE];
    unsigned int slot;
    const nvmlReturn_t result = line_behind(gpu, &slot, line);
    if (result == NVML_SUCCESS)
        *out = (unsigned int)number_option(line, "ci", 0);
    return result;
}

NVML nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *out)
{
    ENTER_GPU(nvmlDeviceGetAttributes_v2, device);
    char line[TEXT_SIZE];
    unsigned int slot, slices = 0;
    const nvmlReturn_t result = line_behind(gpu, &slot, line);
    if (result != NVML_SUCCESS)
        return result;
    const char *end = strstr(line, "g.");
    while (end != NULL && end > line && strchr("0123456789", end[-1]) != NULL)
        end--;
    if (end != NULL)
        slices = (unsigned int)strtoul(end, NULL, 10);
    *out = (nvmlDeviceAttributes_t){.multiprocessorCount = 16 * slices, .gpuInstanceSliceCount = slices,
                                    .computeInstanceSliceCount = slices, .sharedCopyEngineCount = slices,
                                    .memorySizeMB = (unsigned long long)profile_bytes(line) >> 20};
    return NVML_SUCCESS;
}
