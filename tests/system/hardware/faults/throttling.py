"""One fault for each check of the slice `throttling`, under a GEMM that the power limit holds for 90 % of the time."""

from __future__ import annotations

from tests.system.hardware.faults.fault import Fault, fault

OTHERS = ("sync_boost", "sw_thermal", "hw_thermal", "power_brake")
FAULTS: dict[str, Fault] = {
    "throttle_reasons": fault("xml", "clocks_event_reasons/clocks_event_reason_sw_power_cap", "Not Active"),
    "sm_clock_mhz": fault("query", "clocks.sm", "1980"),
    "power_w": fault("query", "power.draw.average", "560.00"),
    "throttle_ns.sw_power_cap (gain)": fault("mltop", "throttle_ns.sw_power_cap", "0"),
    **{f"throttle_ns.{name} (gain)": fault("mltop", f"throttle_ns.{name}", "2000000000") for name in OTHERS},
    # The share is too small for a GPU at its limit, too.
    "throttle_share.sw_power_cap": fault("mltop", "throttle_share.sw_power_cap", "0.01", "sw_power_cap at the limit"),
    **{f"throttle_share.{name}": fault("mltop", f"throttle_share.{name}", "0.2") for name in OTHERS},
    "sw_power_cap at the limit": fault("mltop", "power_limit_w", "900"),
}
