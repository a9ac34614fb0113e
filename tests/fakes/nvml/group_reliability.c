/* ECC, row remapping, retired pages, the driver's verdict (recovery action). */
#include "fake.h"

KEY(ecc_enabled, FLAG, "1");
KEY(ecc_pending, FLAG, "=ecc_enabled");
KEY(ecc_corrected_volatile, NUMBER, "0");
KEY(ecc_uncorrected_volatile, NUMBER, "0");
KEY(ecc_corrected_aggregate, NUMBER, "0");
KEY(ecc_uncorrected_aggregate, NUMBER, "0");
/* part of ecc_uncorrected_aggregate, as the next one of volatile */
KEY(ecc_sram_uncorrected_aggregate, NUMBER, "0");
KEY(ecc_sram_uncorrected_volatile, NUMBER, "0");
KEY(ecc_sram_threshold_exceeded, FLAG, "0");
KEY(remap_corrected, NUMBER, "0");
KEY(remap_uncorrected, NUMBER, "0");
KEY(remap_pending, FLAG, "0");
KEY(remap_failed, FLAG, "0");
KEY(remap_banks_max, NUMBER, "2560");
KEY(remap_banks_high, NUMBER, "0");
KEY(remap_banks_partial, NUMBER, "0");
KEY(remap_banks_low, NUMBER, "0");
KEY(remap_banks_none, NUMBER, "0");
KEY(retired_pages, NUMBER, "unsupported"); /* for double bit errors; before Ampere: row remapping took its place */
KEY(retired_pages_single_bit, NUMBER, "unsupported");
KEY(retired_pages_pending, FLAG, "unsupported");
KEY(channel_repair_pending, FLAG, "0");
KEY(tpc_repair_pending, FLAG, "0");
/* 0 none, 1 GPU reset, 2 node reboot, 3 drain P2P, 4 drain and reset, 5 IMEX, 6 bus reset, 7 system reboot */
KEY(recovery_action, NUMBER, "0");

FIELD(1, key_ecc_enabled, VALUE_UNSIGNED_INT);
FIELD(2, key_ecc_pending, VALUE_UNSIGNED_INT);
FIELD(3, key_ecc_corrected_volatile, VALUE_UNSIGNED_LONG_LONG, .only_while = &key_ecc_enabled);
FIELD(4, key_ecc_uncorrected_volatile, VALUE_UNSIGNED_LONG_LONG, .only_while = &key_ecc_enabled);
FIELD(5, key_ecc_corrected_aggregate, VALUE_UNSIGNED_LONG_LONG, .only_while = &key_ecc_enabled);
FIELD(6, key_ecc_uncorrected_aggregate, VALUE_UNSIGNED_LONG_LONG, .only_while = &key_ecc_enabled);
FIELD(29, key_retired_pages_single_bit, VALUE_UNSIGNED_INT);
FIELD(30, key_retired_pages, VALUE_UNSIGNED_INT);
FIELD(31, key_retired_pages_pending, VALUE_UNSIGNED_INT);
FIELD(142, key_remap_corrected, VALUE_UNSIGNED_INT);
FIELD(143, key_remap_uncorrected, VALUE_UNSIGNED_INT);
FIELD(144, key_remap_pending, VALUE_UNSIGNED_INT);
FIELD(145, key_remap_failed, VALUE_UNSIGNED_INT);
FIELD(230, key_recovery_action, VALUE_UNSIGNED_INT);

GPU_UNSIGNED(nvmlDeviceGetRetiredPagesPendingStatus, key_retired_pages_pending)

NVML nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    ENTER_GPU(nvmlDeviceGetEccMode, device);
    const nvmlReturn_t result = answer_unsigned(gpu, &key_ecc_enabled, current);
    return result == NVML_SUCCESS ? answer_unsigned(gpu, &key_ecc_pending, pending) : result;
}

/* Counters exist only while ECC is on. */
static nvmlReturn_t ecc_count(int gpu, const struct key *key, unsigned long long *out)
{
    long long enabled;
    const nvmlReturn_t result = number_of(gpu, &key_ecc_enabled, &enabled);
    if (result != NVML_SUCCESS || !enabled)
        return NVML_ERROR_NOT_SUPPORTED;
    return answer_ulonglong(gpu, key, out);
}

static const struct key *const total_keys[2][2] = {
    [ERROR_CORRECTED] = {&key_ecc_corrected_volatile, &key_ecc_corrected_aggregate},
    [ERROR_UNCORRECTED] = {&key_ecc_uncorrected_volatile, &key_ecc_uncorrected_aggregate},
};
static const struct key *const sram_keys[2] = {&key_ecc_sram_uncorrected_volatile,
                                               &key_ecc_sram_uncorrected_aggregate};

NVML nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned int error, unsigned int counter,
                                              unsigned long long *out)
{
    ENTER_GPU(nvmlDeviceGetTotalEccErrors, device);
    if (error > ERROR_UNCORRECTED || counter > COUNTER_AGGREGATE)
        return NVML_ERROR_INVALID_ARGUMENT;
    return ecc_count(gpu, total_keys[error][counter], out);
}

NVML nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, unsigned int error,
                                                  unsigned int counter,
                                                  unsigned int location, unsigned long long *out)
{
    ENTER_GPU(nvmlDeviceGetMemoryErrorCounter, device);
    unsigned long long total, sram = 0;
    if (error > ERROR_UNCORRECTED || counter > COUNTER_AGGREGATE || out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (location != LOCATION_DRAM && location != LOCATION_SRAM)
        return NVML_ERROR_NOT_SUPPORTED;
    nvmlReturn_t result = ecc_count(gpu, total_keys[error][counter], &total);
    if (result == NVML_SUCCESS && error == ERROR_UNCORRECTED)
        result = ecc_count(gpu, sram_keys[counter], &sram);
    if (result == NVML_SUCCESS)
        *out = location == LOCATION_SRAM ? sram : total - (sram < total ? sram : total);
    return result;
}

NVML nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_v1_t *out)
{
    ENTER_GPU(nvmlDeviceGetSramEccErrorStatus, device);
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (out->version != VERSION_WORD(nvmlEccSramErrorStatus_v1_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    *out = (nvmlEccSramErrorStatus_v1_t){.version = out->version};
    nvmlReturn_t result = ecc_count(gpu, &key_ecc_sram_uncorrected_aggregate, &out->aggregateUncSecDed);
    if (result == NVML_SUCCESS)
        result = ecc_count(gpu, &key_ecc_sram_uncorrected_volatile, &out->volatileUncSecDed);
    if (result == NVML_SUCCESS)
        result = answer_unsigned(gpu, &key_ecc_sram_threshold_exceeded, &out->bThresholdExceeded);
    out->aggregateUncBucketSm = out->aggregateUncSecDed;
    return result;
}

NVML nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrected,
                                            unsigned int *uncorrected,
                                            unsigned int *pending, unsigned int *failed)
{
    ENTER_GPU(nvmlDeviceGetRemappedRows, device);
    nvmlReturn_t result = answer_unsigned(gpu, &key_remap_corrected, corrected);
    if (result == NVML_SUCCESS)
        result = answer_unsigned(gpu, &key_remap_uncorrected, uncorrected);
    if (result == NVML_SUCCESS)
        result = answer_unsigned(gpu, &key_remap_pending, pending);
    if (result == NVML_SUCCESS)
        result = answer_unsigned(gpu, &key_remap_failed, failed);
    return result;
}

NVML nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device,
                                                    nvmlRowRemapperHistogramValues_t *out)
{
    ENTER_GPU(nvmlDeviceGetRowRemapperHistogram, device);
    const struct key *const keys[] = {&key_remap_banks_max, &key_remap_banks_high, &key_remap_banks_partial,
                                      &key_remap_banks_low, &key_remap_banks_none};
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    unsigned int *const members[] = {&out->max, &out->high, &out->partial, &out->low, &out->none};
    nvmlReturn_t result = NVML_SUCCESS;
    for (int i = 0; i < 5 && result == NVML_SUCCESS; i++)
        result = answer_unsigned(gpu, keys[i], members[i]);
    return result;
}

NVML nvmlReturn_t nvmlDeviceGetRepairStatus(nvmlDevice_t device, nvmlRepairStatus_v1_t *out)
{
    ENTER_GPU(nvmlDeviceGetRepairStatus, device);
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (out->version != VERSION_WORD(nvmlRepairStatus_v1_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const nvmlReturn_t result = answer_unsigned(gpu, &key_channel_repair_pending,
                                                &out->bChannelRepairPending);
    return result == NVML_SUCCESS ? answer_unsigned(gpu, &key_tpc_repair_pending,
                                                    &out->bTpcRepairPending) : result;
}

/* Cause 0: several single bit errors, 1: a double bit error; one page after the other from address 0x1000. */
static nvmlReturn_t retired_pages(int gpu, unsigned int cause, unsigned int *count,
                                  unsigned long long *addresses,
                                  unsigned long long *times)
{
    unsigned int total;
    long long single = 0;
    const nvmlReturn_t result = answer_unsigned(gpu, &key_retired_pages, &total);
    if (result != NVML_SUCCESS || count == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    const unsigned int room = *count;
    if (cause == 0)
        total = number_of(gpu, &key_retired_pages_single_bit, &single) == NVML_SUCCESS ? (unsigned int)single : 0;
    *count = total;
    if (total > 0 && (room < total || addresses == NULL))
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < total; i++) {
        addresses[i] = 0x1000ULL * (i + 1);
        if (times != NULL)
            times[i] = 1700000000;
    }
    return NVML_SUCCESS;
}

NVML nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, unsigned int cause, unsigned int *count,
                                            unsigned long long *addresses)
{
    ENTER_GPU(nvmlDeviceGetRetiredPages, device);
    return retired_pages(gpu, cause, count, addresses, NULL);
}

NVML nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, unsigned int cause, unsigned int *count,
                                               unsigned long long *addresses, unsigned long long *times)
{
    ENTER_GPU(nvmlDeviceGetRetiredPages_v2, device);
    return retired_pages(gpu, cause, count, addresses, times);
}
