"""What happens to network ports and PCIe, for every rule about them."""

from __future__ import annotations

from functools import partial

from tests.driven.node import Node
from tests.driven.scene import Scene
from tests.driven.scenes_gpu import says

WORDS_PER_S = 5_000_000_000  # of four bytes: 20 GB/s, 40 % of a port's rate
ROCE, EFA = "0000:32:00.0", "0000:33:00.0"


def with_roce_and_efa(node: Node) -> None:
    """As on a cloud's machine, beside its InfiniBand."""
    node.sys.pci(ROCE, 0x15B3, 0x1021, 0x020000, "mlx5_core")
    node.sys.roce("mlx5_8", ROCE, "eth2")
    node.sys.efa("rdmap0s1", EFA)


def _grows(node: Node, device: str, **counters: int) -> None:
    node.sys.count(device, **counters)


def grows(device: str, **counters: int) -> partial[None]:
    return partial(_grows, device=device, **counters)


def _carries_traffic(node: Node, seconds: float, _turn: int) -> None:
    """All ports send alike; from ``act`` on mlx5_3 waits for credits, and mlx5_6 sends no more."""
    for index in range(8) if seconds < 0 else (0, 1, 2, 3, 4, 5, 7):
        sent = int(WORDS_PER_S * node.uptime())
        waited = int(2 * WORDS_PER_S * max(0.0, seconds)) if index == 3 else 0
        waited += sent // 1000
        node.sys.set_counters(f"mlx5_{index}", port_xmit_data=sent, port_rcv_data=sent, port_xmit_wait=waited)


IB = (
    Scene("ib.missing", "ib", "the device mlx5_7 goes", lambda node: node.sys.remove_infiniband("mlx5_7")),
    Scene("ib.chardev", "ib", "mlx5_6 loses its uverbs device", lambda node: node.sys.chardev("mlx5_6", False)),
    Scene(
        "ib.down",
        "ib",
        "the link of mlx5_5 goes down",
        lambda node: node.sys.set_port("mlx5_5", state="1: DOWN", phys_state="2: Polling"),
    ),
    Scene("ib.flap", "ib", "link_downed of mlx5_4 grows by 4", grows("mlx5_4", link_downed=4)),
    Scene(
        "ib.saturated",
        "ib",
        "symbol_error of mlx5_3 stands at its maximum",
        lambda node: node.sys.set_counters("mlx5_3", symbol_error=65535),
    ),
    Scene(
        "ib.rate",
        "ib",
        "mlx5_2 comes up with half of its rate",
        lambda node: node.sys.set_port("mlx5_2", rate="200 Gb/sec (4X HDR)"),
    ),
    Scene("ib.ber", "ib", "10 000 symbol errors on mlx5_1", grows("mlx5_1", symbol_error=10_000)),
    Scene("ib.recovery", "ib", "mlx5_1 recovers 100 times", grows("mlx5_1", link_error_recovery=100)),
    Scene("ib.integrity", "ib", "a link integrity error on mlx5_0", grows("mlx5_0", local_link_integrity_errors=1)),
    Scene("ib.rcv_errors", "ib", "50 000 receive errors on mlx5_0", grows("mlx5_0", port_rcv_errors=50_000)),
    Scene("ib.discards", "ib", "mlx5_0 discards 500 000 packets", grows("mlx5_0", port_xmit_discards=500_000)),
    Scene("ib.transport", "ib", "mlx5_0 misses 5000 acknowledgements", grows("mlx5_0", local_ack_timeout_err=5000)),
    Scene(
        "ib.wait",
        "cloud",
        "mlx5_3 waits for credits, the node's other ports do not",
        lambda node: None,
        apart_s=5,
        moves=_carries_traffic,
    ),
    Scene("ib.still", "cloud", "mlx5_6 sends no more, the node's other ports do", lambda node: None, apart_s=5),
    Scene(
        "ib.driver",
        "log",
        "mlx5's firmware stops",
        says("mlx5_core 0000:44:00.0: poll_health:800: device's health compromised - reached miss count"),
    ),
)
OTHERS = (
    Scene("roce.slow", "cloud", "mlx5_8 restarts slowly 5000 times", grows("mlx5_8", roce_slow_restart=5000)),
    Scene(
        "eth.errors",
        "cloud",
        "500 damaged packets on eth0",
        lambda node: node.sys.set_statistics("eth0", rx_crc_errors=500),
    ),
    Scene("eth.slow", "cloud", "eth0 comes up with 10 Gb/s", lambda node: node.sys.set_net("eth0", speed=10_000)),
    Scene("efa", "cloud", "the EFA adapter drops 100 000 packets", grows("rdmap0s1", rx_drops=100_000)),
    Scene(
        "pcie.limited",
        "log",
        "the kernel has found 8 of 16 lanes on the way to GPU 5",
        says(
            "pci 0000:c3:00.0: 252.048 Gb/s available PCIe bandwidth, limited by 32.0 GT/s PCIe x8 link at 0000:c1:00.0"
        ),
    ),
    Scene(
        "gdr.peermem",
        "log",
        "nvidia_peermem reports an error",
        says("nvidia_peermem: nv_get_p2p_free_callback -- ERROR detected invalid context, skipping further processing"),
    ),
)
SCENES = (*IB, *OTHERS)
