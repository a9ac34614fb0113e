"""What happens to GPUs, their driver and their NVLinks, for every rule about them."""

from __future__ import annotations

from functools import partial

from tests.driven.node import Node
from tests.driven.scene import Scene

LEMON = "GPU-5a4e0001-0000-4000-8000-00000000beef"
RESTARTED = ("memory", "settings", "nvlink", "reboot")  # nodes whose agents start anew: for what is read seldom


def gpu(index: int, **values: int | str) -> partial[None]:
    return partial(_set, index=index, values=values)


def _set(node: Node, index: int, values: dict[str, int | str]) -> None:
    node.set_gpu(index, **values)


def _counts(node: Node, seconds: float, turn: int, gpu_index: int, counter: str, each: int) -> None:
    """Again and again: what was counted before an agent began is not growth."""
    if seconds >= 0:
        node.set_gpu(gpu_index, **{counter: each * turn})
        node.nvml.write()


def call_fails(index: int, code: int) -> partial[None]:
    return partial(_set, index=index, values={"call.*": f"error {code}"})


def says(text: str, ago_s: float = 60.0, times: int = 1) -> partial[None]:
    """The kernel logs it; ``times``: at moments a quarter of an hour apart."""
    return partial(_say, text=text, ago_s=ago_s, times=times)


def _say(node: Node, text: str, ago_s: float, times: int) -> None:
    for number in reversed(range(times)):
        node.say(text, ago_s=ago_s + 900.0 * number)


def xid(gpu_index: int, code: int, text: str, **when: float) -> partial[None]:
    return partial(_xid, gpu_index=gpu_index, code=code, text=text, **when)


def _xid(node: Node, gpu_index: int, code: int, text: str, ago_s: float = 60.0, times: int = 1) -> None:
    bus = node.sys.gpu_at(gpu_index).removesuffix(".0")
    _say(node, f"NVRM: Xid (PCI:{bus}): {code}, pid=4{gpu_index:03d}, name=python, {text}", ago_s, times)


def _reboots_without_gpu_7(node: Node) -> None:
    node.reboot()
    node.forget_gpu(7)
    node.nvml.set("count", 7)


def _link_errors(node: Node, seconds: float, _turn: int, gpu_index: int, counter: str, per_s: int) -> None:
    node.set_gpu(gpu_index, **{counter: f"0, {max(0, int(per_s * seconds))}, 0"})
    node.nvml.write()


LOST = (
    Scene("gpu.lost", "lost", "NVML answers 15 for GPU 5", call_fails(5, 15)),
    Scene("gpu.error", "lost", "NVML answers 999 for GPU 6", call_fails(6, 999)),
    Scene("gpu.missing", "reboot", "after a reboot NVML lists 7 of the 8 GPUs on the bus", _reboots_without_gpu_7),
    Scene(
        "nvml.stuck",
        "stuck",
        "nvmlDeviceGetUtilizationRates of GPU 2 does not return",
        gpu(2, **{"call.nvmlDeviceGetUtilizationRates": "block forever"}),
    ),
)
XIDS = (
    Scene("gpu.xid.hw", "log", "Xid 79 on GPU 3 in the kernel log", xid(3, 79, "GPU has fallen off the bus.")),
    Scene("gpu.xid.warn", "log", "Xid 94 on GPU 2", xid(2, 94, "Contained: SM (0x1). RST: No, D-RST: No")),
    Scene("gpu.xid.app", "log", "Xid 31 on GPU 1", xid(1, 31, "MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted")),
    Scene("gpu.xid.repeat", "log", "Xid 119 on GPU 4 six times", xid(4, 119, "Timeout waiting for RPC", times=6)),
    Scene(
        "gpu.sxid",
        "log",
        "SXid 24007 (fatal) of an NVSwitch",
        says("nvidia-nvswitch0: SXid (PCI:0000:07:00.0): 24007, Fatal, Link 28 sourcetrack timeout error (First)"),
    ),
)
MEMORY = (
    Scene("gpu.ecc.dbe_volatile", "memory", "2 uncorrected errors on GPU 0", gpu(0, ecc_uncorrected_volatile=2)),
    Scene("gpu.ecc.sram_threshold", "memory", "GPU 1 reports its threshold", gpu(1, ecc_sram_threshold_exceeded=1)),
    Scene("gpu.ecc.sram_aggregate", "memory", "6 errors in SRAM of GPU 2", gpu(2, ecc_sram_uncorrected_aggregate=6)),
    Scene(
        "gpu.ecc.sbe_rate",
        "memory",
        "GPU 3 corrects 500 errors",
        lambda node: None,
        moves=partial(_counts, gpu_index=3, counter="ecc_corrected_aggregate", each=500),
    ),
    Scene("gpu.ecc.off", "memory", "ECC of GPU 4 is switched off", gpu(4, ecc_enabled=0)),
    Scene("gpu.remap.pending", "memory", "GPU 5 waits to remap a row", gpu(5, remap_pending=1)),
    Scene("gpu.remap.failed", "memory", "GPU 6 fails to remap a row", gpu(6, remap_failed=1)),
    Scene("gpu.remap.banks", "memory", "a bank of GPU 7 has no spare row", gpu(7, remap_banks_none=1)),
)
SETTINGS = (
    Scene("gpu.remap.count", "settings", "GPU 0 has remapped 600 rows", gpu(0, remap_uncorrected=600)),
    Scene("gpu.pages.retired", "settings", "GPU 1 waits to retire a page", gpu(1, retired_pages_pending=1)),
    Scene("gpu.power.limit_low", "settings", "GPU 2 is limited to 500 W", gpu(2, power_limit_mw=500_000)),
    Scene("gpu.persistence", "settings", "persistence of GPU 3 is switched off", gpu(3, persistence=0)),
    Scene("gpu.compute_mode", "settings", "GPU 4 is set to Prohibited", gpu(4, compute_mode=2)),
    Scene("gpu.mig", "settings", "MIG mode of GPU 5 is switched on, before the reset", gpu(5, mig_pending=1)),
    Scene("gpu.driver", "settings", "GPU 6 has another VBIOS", gpu(6, vbios="96.00.99.00.01")),
    Scene("gpu.recovery", "settings", "the driver asks for a reset of GPU 7", gpu(7, recovery_action=1)),
    Scene("gpu.lemon", "settings", "a GPU that is on the list comes back as GPU 0", gpu(0, uuid=LEMON)),
)
HEAT = (
    Scene(
        "gpu.throttle.hw_thermal",
        "heat",
        "GPU 0 slows down at 91 °C",
        gpu(0, throttle_mask=0x40, sm_clock_mhz=1200, temperature_c=91, temperature_margin_c=1),
    ),
    Scene("gpu.throttle.power_brake", "heat", "an external power brake on GPU 1", gpu(1, throttle_mask=0x80)),
    Scene(
        "gpu.throttle.sw_thermal",
        "heat",
        "the driver slows GPU 2 down at 84 °C",
        gpu(2, throttle_mask=0x20, sm_clock_mhz=1500, temperature_c=84, temperature_margin_c=3),
        apart_s=10,
    ),
    Scene("gpu.throttle.hw_slowdown", "heat", "GPU 3 slows down without a reason", gpu(3, throttle_mask=0x8)),
    Scene("gpu.temp.margin", "heat", "GPU 4 is 4 °C from its slowdown", gpu(4, temperature_margin_c=4), apart_s=10),
    Scene("gpu.power.zero", "heat", "GPU 7 is busy at 0 MHz", gpu(7, busy_percent=100, sm_clock_mhz=0), apart_s=10),
    Scene("gpu.temp.hbm", "heat", "the memory of GPU 5 reaches 98 °C", gpu(5, memory_temperature_c=98)),
    Scene(
        "gpu.temp.peer",
        "heat",
        "GPU 6 is 20 °C hotter than the others at the same load",
        gpu(6, temperature_c=81, temperature_margin_c=8),
        apart_s=10,
    ),
)
CLOCKS = (
    Scene(
        "gpu.throttle.power_cap",
        "clocks",
        "GPU 0 runs into its power limit at 1400 MHz",
        gpu(0, throttle_mask=0x4, sm_clock_mhz=1400),
        apart_s=10,
    ),
    Scene(
        "gpu.throttle.user_clocks",
        "clocks",
        "GPU 1 is pinned to 1410 MHz",
        gpu(1, throttle_mask=0x2, sm_clock_mhz=1410),
    ),
    Scene(
        "gpu.clock.low_busy",
        "straggler",
        "GPU 2 works at 1400 MHz, for no reason",
        gpu(2, sm_clock_mhz=1400),
        apart_s=10,
    ),
)
NVLINKS = (
    Scene("nvlink.inactive", "nvlink", "link 2 of GPU 0 goes down", gpu(0, nvlink_state="1, 1, 0, 1")),
    Scene("nvlink.speed", "nvlink", "links of GPU 1 at 20 GB/s", gpu(1, nvlink_speed_mbps="26562, 20000")),
    Scene(
        "nvlink.replay",
        "nvlink",
        "2 replays a second on link 1 of GPU 2",
        lambda node: None,
        moves=partial(_link_errors, gpu_index=2, counter="nvlink_replay", per_s=2),
    ),
    Scene(
        "nvlink.crc",
        "nvlink",
        "1000 CRC errors a second on link 1 of GPU 3",
        lambda node: None,
        moves=partial(_link_errors, gpu_index=3, counter="nvlink_crc", per_s=1000),
    ),
    Scene("fabric.state", "nvlink", "GPU 4's fabric is unhealthy", gpu(4, fabric_health_summary=2), apart_s=10),
    Scene("pcie.width", "nvlink", "GPU 5's link has 8 of 16 lanes", gpu(5, pcie_width=8)),
    Scene(
        "pcie.replay",
        "nvlink",
        "9000 replays on GPU 6's PCIe link",
        lambda node: None,
        moves=partial(_counts, gpu_index=6, counter="pcie_replay_count", each=9000),
    ),
    Scene(
        "pcie.acs",
        "nvlink",
        "ACS is switched on in the bridges",
        lambda node: node.switch_acs_on(),
    ),
    Scene(
        "fabric.manager",
        "nvlink",
        "the service nvidia-fabricmanager fails",
        lambda node: node.systemd.set("fabricmanager", "failed"),
    ),
    Scene("fabric.imex", "nvlink", "the service nvidia-imex fails", lambda node: node.systemd.set("imex", "failed")),
)
SCENES = (*LOST, *XIDS, *MEMORY, *SETTINGS, *HEAT, *CLOCKS, *NVLINKS)
