/* Why clocks are low: the mask that holds now, and the time counters (ns). */
#include <time.h>

#include "fake.h"

KEY(throttle_mask, MASK, "0x1"); /* gpu_idle */
KEY(throttle_supported_mask, MASK, "0x1ff");
KEY_NAMED(throttle_ns_sw_power_cap, "throttle_ns.sw_power_cap", NUMBER, "0");
KEY_NAMED(throttle_ns_thermal, "throttle_ns.thermal", NUMBER, "0"); /* the old one, software and hardware */
KEY_NAMED(throttle_ns_sync_boost, "throttle_ns.sync_boost", NUMBER, "0");
KEY_NAMED(throttle_ns_board_limit, "throttle_ns.board_limit", NUMBER, "0");
KEY_NAMED(throttle_ns_low_utilization, "throttle_ns.low_utilization", NUMBER, "0");
KEY_NAMED(throttle_ns_reliability, "throttle_ns.reliability", NUMBER, "0");
KEY_NAMED(throttle_ns_sw_thermal, "throttle_ns.sw_thermal", NUMBER, "0");
KEY_NAMED(throttle_ns_hw_thermal, "throttle_ns.hw_thermal", NUMBER, "0");
KEY_NAMED(throttle_ns_power_brake, "throttle_ns.power_brake", NUMBER, "0");

FIELD(74, key_throttle_ns_sw_power_cap, VALUE_UNSIGNED_LONG_LONG);
FIELD(75, key_throttle_ns_thermal, VALUE_UNSIGNED_LONG_LONG);
FIELD(76, key_throttle_ns_sync_boost, VALUE_UNSIGNED_LONG_LONG);
FIELD(77, key_throttle_ns_board_limit, VALUE_UNSIGNED_LONG_LONG);
FIELD(78, key_throttle_ns_low_utilization, VALUE_UNSIGNED_LONG_LONG);
FIELD(79, key_throttle_ns_reliability, VALUE_UNSIGNED_LONG_LONG);
FIELD(269, key_throttle_ns_sw_thermal, VALUE_UNSIGNED_LONG_LONG);
FIELD(270, key_throttle_ns_hw_thermal, VALUE_UNSIGNED_LONG_LONG);
FIELD(271, key_throttle_ns_power_brake, VALUE_UNSIGNED_LONG_LONG);

/* Power smoothing (Blackwell): of its eighteen numbers those whose ids are throttle time under other drivers. */
KEY_NAMED(power_smoothing_enabled, "power_smoothing.enabled", NUMBER, "unsupported");
KEY_NAMED(power_smoothing_privilege, "power_smoothing.privilege", NUMBER, "unsupported");
KEY_NAMED(power_smoothing_ramps_down_at_once, "power_smoothing.ramps_down_at_once", NUMBER, "unsupported");
KEY_NAMED(power_smoothing_profile, "power_smoothing.profile", NUMBER, "unsupported");
KEY_NAMED(power_smoothing_floor_percent, "power_smoothing.floor_percent", NUMBER, "unsupported");
KEY_NAMED(power_smoothing_ramp_up_mw_per_s, "power_smoothing.ramp_up_mw_per_s", NUMBER, "unsupported");

FIELD(251, key_power_smoothing_enabled, VALUE_UNSIGNED_INT);
FIELD(252, key_power_smoothing_privilege, VALUE_UNSIGNED_INT);
FIELD(253, key_power_smoothing_ramps_down_at_once, VALUE_UNSIGNED_INT);
FIELD(264, key_power_smoothing_profile, VALUE_UNSIGNED_INT);
FIELD(265, key_power_smoothing_floor_percent, VALUE_UNSIGNED_INT);
FIELD(266, key_power_smoothing_ramp_up_mw_per_s, VALUE_UNSIGNED_INT);

GPU_ULONGLONG(nvmlDeviceGetCurrentClocksEventReasons, key_throttle_mask)
GPU_ULONGLONG(nvmlDeviceGetCurrentClocksThrottleReasons, key_throttle_mask)
GPU_ULONGLONG(nvmlDeviceGetSupportedClocksEventReasons, key_throttle_supported_mask)
GPU_ULONGLONG(nvmlDeviceGetSupportedClocksThrottleReasons, key_throttle_supported_mask)

/* By nvmlPerfPolicyType_t: power, thermal, sync boost, board limit, low utilization, reliability. */
static const struct key *const policies[] = {
    &key_throttle_ns_sw_power_cap, &key_throttle_ns_thermal,         &key_throttle_ns_sync_boost,
    &key_throttle_ns_board_limit,  &key_throttle_ns_low_utilization, &key_throttle_ns_reliability,
};

NVML nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, unsigned int policy,
                                               nvmlViolationTime_t *out)
{
    ENTER_GPU(nvmlDeviceGetViolationStatus, device);
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (policy >= sizeof policies / sizeof policies[0])
        return NVML_ERROR_NOT_SUPPORTED;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    out->referenceTime = (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000;
    return answer_ulonglong(gpu, policies[policy], &out->violationTime);
}
