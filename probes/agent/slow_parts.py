"""When to send what rarely changes: three quarters of a sample are ports, PCI devices and NVLinks one by one."""

from __future__ import annotations

from mltop.probes.model import Sample

EVERY_S = 4.5  # five seconds at one sample per second, with room for its jitter


class SlowParts:
    """Sent every five seconds, and at once when a port, an NVLink or a device is in another state than before."""

    def __init__(self) -> None:
        self._sent_at = float("-inf")
        self._states: object = None

    def is_due(self, sample: Sample) -> bool:
        """Whether to send it with this sample; then it counts as sent."""
        states = _states(sample)
        if states == self._states and 0 <= sample.sampled_at - self._sent_at < EVERY_S:
            return False
        self._sent_at, self._states = sample.sampled_at, states
        return True


def _states(sample: Sample) -> object:
    return (
        [(link.device, link.port, link.state, link.error) for link in sample.links],
        [len(sample.pci), *(device.link_width for device in sample.pci)],
        [sum(bool(link.active) for link in gpu.nvlink.links) for gpu in sample.gpus],
    )
