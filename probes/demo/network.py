"""The network ports of a simulated node: one InfiniBand port per GPU, and an Ethernet port for the rest."""

from __future__ import annotations

import random

from mltop.probes.demo.machine import nic_bus
from mltop.probes.model import LinkSample

IB_BITS_PER_S = 400e9
ETHERNET_BITS_PER_S = 100e9
WORD_BYTES = 4  # port_xmit_data and port_rcv_data count in words of four bytes
DOWN_PORT = 4
# One Gb/s of gradients and more per port while training; hardly anything while all ranks wait.
TRAINING_BYTES_PER_S, WAITING_BYTES_PER_S = 14e9, 2e4
MOVING = ("rx_bytes_per_s", "tx_bytes_per_s", "port_rcv_data", "port_xmit_data")


def links_of(number: int, gpus: int, faulty: bool = False) -> list[LinkSample]:
    """All ports as they are when nothing moves; ``faulty``: one InfiniBand port is down."""
    source = random.Random(number * 7919)
    ports = [_infiniband(index, gpus, source, faulty and index == DOWN_PORT) for index in range(gpus)]
    return [*ports, _ethernet(source)]


def is_moving(link: LinkSample) -> bool:
    return link.kind == "infiniband" and link.state == "ACTIVE"


def moving(t: float, trained_s: float, training: bool, port: int) -> dict[str, int]:
    """The values of MOVING ``t`` seconds after the counters were 0, of which ``trained_s`` were spent training."""
    per_s = (TRAINING_BYTES_PER_S if training else WAITING_BYTES_PER_S) * (1 + 0.01 * port)
    total = int(trained_s * TRAINING_BYTES_PER_S + (t - trained_s) * WAITING_BYTES_PER_S)
    values = (int(per_s), int(per_s * 0.998), total // WORD_BYTES, int(total * 0.998) // WORD_BYTES)
    return dict(zip(MOVING, values))


def _infiniband(index: int, gpus: int, source: random.Random, is_down: bool) -> LinkSample:
    # What happened when cables were plugged in, long ago: only growth means something.
    old = source.choice((0, 0, 0, 1, 2))
    return LinkSample(
        device=f"mlx5_{index}",
        kind="infiniband",
        state="DOWN" if is_down else "ACTIVE",
        physical_state="Polling" if is_down else "LinkUp",
        rate_bits_per_s=10e9 if is_down else IB_BITS_PER_S,
        rx_bytes_per_s=0.0,
        tx_bytes_per_s=0.0,
        netdev=f"ibp{0x1A + 0x18 * index}s0",
        mtu=4096,
        firmware="28.43.1014",
        pci_bus_id=nic_bus(index),
        numa_node=int(index >= gpus / 2),
        has_chardev=True,
        counters={
            "port_rcv_data": 0,
            "port_xmit_data": 0,
            "symbol_error": old * 3,
            "link_error_recovery": 0,
            "link_downed": old + (1 if is_down else 0),
            "port_rcv_errors": 0,
            "port_xmit_discards": 0,
            "port_xmit_wait": source.randrange(10**8, 10**9),
            "local_link_integrity_errors": 0,
            "excessive_buffer_overrun_errors": 0,
            "local_ack_timeout_err": old,
            "packet_seq_err": 0,
            "out_of_sequence": old * 11,
            "rnr_nak_retry_err": 0,
            "req_transport_retries_exceeded": 0,
        },
    )


def _ethernet(source: random.Random) -> LinkSample:
    return LinkSample(
        device="eno1",
        kind="ethernet",
        state="UP",
        physical_state="LinkUp",
        rate_bits_per_s=ETHERNET_BITS_PER_S,
        rx_bytes_per_s=2.1e6,
        tx_bytes_per_s=0.4e6,
        netdev="eno1",
        mtu=9000,
        pci_bus_id="0000:c1:00.0",
        numa_node=0,
        counters={
            "rx_errors": 0,
            "tx_errors": 0,
            "rx_crc_errors": 0,
            "rx_missed_errors": 0,
            "rx_dropped": source.randrange(50, 400),
            "carrier_changes": 2,
        },
    )
