"""Why clocks are held down, and for how long: reasons and counters."""

from __future__ import annotations

from tests.hardware.asked import Asked, Reader, violation, xml
from tests.hardware.checks import Told
from tests.hardware.rows.row import Row, number

# By mltop's name, nvidia-smi's: of reasons, then of the counters' elements.
_REASONS = {
    "gpu_idle": "gpu_idle",
    "applications_clocks": "applications_clocks_setting",
    "sw_power_cap": "sw_power_cap",
    "hw_slowdown": "hw_slowdown",
    "sync_boost": "sync_boost",
    "sw_thermal": "sw_thermal_slowdown",
    "hw_thermal": "hw_thermal_slowdown",
    "power_brake": "hw_power_brake_slowdown",
    "display_clocks": "display_clocks_setting",
}
COUNTERS = {
    "sw_power_cap": "sw_power_cap",
    "sync_boost": "sync_boost",
    "sw_thermal": "sw_therm_slowdown",
    "hw_thermal": "hw_therm_slowdown",
    "power_brake": "hw_power_brake",
}
POLICIES = {"sw_power_cap": 0, "sync_boost": 2, "board_limit": 3, "low_utilization": 4, "reliability": 5}


def nanoseconds(text: str) -> float:
    return 1000 * number(text)


def reasons(asked: Asked, index: int) -> Told:
    """Of the elements by name; drivers before 535 call them throttle reasons."""
    found, told = [], Told(why="nvidia-smi -q tells no reasons")
    for ours, theirs in _REASONS.items():
        told = xml(
            f"clocks_event_reasons/clocks_event_reason_{theirs}",
            f"clocks_throttle_reasons/clocks_throttle_reason_{theirs}",
        )(asked, index)
        if told.value is None:
            return told
        found += [ours] if told.value.lower() == "active" else []
    return Told(sorted(found))


def throttle_counter(name: str) -> Reader:
    """Nanoseconds; ``name`` is mltop's."""
    return xml(f"clocks_event_reasons_counters/clocks_event_reasons_counters_{COUNTERS[name]}", convert=nanoseconds)


THROTTLING = (
    Row("throttle_reasons", "nvidia-smi -q clocks_event_reasons", reasons, "set", ours=sorted),
    *(
        Row(
            f"throttle_ns.{ours}",
            f"nvidia-smi -q clocks_event_reasons_counters {theirs}",
            throttle_counter(ours),
            "moves",
            "ns",
            1e6,
        )
        for ours, theirs in COUNTERS.items()
    ),
    *(
        Row(
            f"throttle_ns.{ours}",
            "nvmlDeviceGetViolationStatus",
            violation(policy),
            "moves",
            "ns",
            1e6,
            suffix="violation status",
        )
        for ours, policy in POLICIES.items()
    ),
)
