"""A node as `bash tests/gpu` meets it: the fake NVML, an nvidia-smi that reads the same scenario, a torch, /proc.

machine = GpuMachine(tmp_path)
machine.smi.lie("query", "clocks.sm", "999")
subprocess.run(["bash", "tests/gpu"], env=machine.env())
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.fakes.machine import FakeMachine
from tests.fakes.nvidia_smi import FakeSmi
from tests.fakes.nvml.shapes import DRIVERS, SHAPES, shape
from tests.fakes.sysfs import GPU_BUSES

TORCH = Path(__file__).with_name("gpu_torch")
POWER_MW = 560_000


class GpuMachine(FakeMachine):
    """One H100 by default, with one rank of a job. What runs in it (energy) runs by itself.

    ``kind`` and ``driver``: as tests/fakes/nvml/shapes.py has them.
    """

    def __init__(
        self, directory: Path, gpus: int = 1, ranks: bool = True, kind: str = "h100", driver: str = "580"
    ) -> None:
        super().__init__(directory, gpus=gpus, ranks=ranks)
        if (kind, driver) != ("h100", "580"):
            self.nvml.unset_all("gpu.*.")
            self.nvml.unset_all("gpu.0.temperature_memory_max_c")
            shape(kind, self.nvml, gpus, driver)
            if ranks:
                self.work(range(gpus), sm_clock_mhz=int(SHAPES[kind].get("sm_clock_max_mhz", 1980)))
        self._driver = DRIVERS[driver]
        self._shape = SHAPES[kind]
        self.smi = FakeSmi(directory)
        self.torch_lies: dict[str, object] = {}  # properties of torch's GPUs, once they are in this file
        self.torch_lies_path = directory / "torch.lies"
        self._information: dict[int, dict[str, str]] = {}
        for index in range(gpus):
            self.nvml.set(f"gpu.{index}.energy_mj", f"5000 + {POWER_MW if ranks else 70_000}/s")
            self.information(index)
            if "pcie_gen" in self._shape:
                self.sys.set_pci(f"0000:{GPU_BUSES[index]}:00.0", current_link_speed="16.0 GT/s PCIe")
        version = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {self._driver}  Release Build"
        self.write_proc("driver/nvidia/version", f"{version}\nGCC version: gcc 12\n")
        self.nvml.write()

    def information(self, index: int, **lines: str) -> None:
        """/proc/driver/nvidia/gpus/<bus id>/information; ``lines`` replace some of it."""
        bus_id = f"0000:{GPU_BUSES[index]}:00.0"
        usual = {
            "Model": self._shape["name"],
            "IRQ": "118",
            "GPU UUID": f"GPU-5a4e0001-0000-4000-8000-{index:012}",
            "Video BIOS": "96.00.a5.00.01",
            "Bus Type": "PCIe",
            "Bus Location": bus_id,
            "Device Minor": str(index),
            "GPU Firmware": "N/A" if "gsp_firmware" in self._shape else self._driver,
            "GPU Excluded": "No",
        }
        known = self._information.setdefault(index, usual)
        known.update(lines)
        text = "".join(f"{name + ':':<17}{value}\n" for name, value in known.items())
        self.write_proc(f"driver/nvidia/gpus/{bus_id}/information", text)

    def env(self, state: bool = True) -> dict[str, str]:
        found = super().env(state)
        found["PATH"] = f"{self.smi.bin}:{found['PATH']}"
        found["MLTOP_FAKE_TORCH_LIES"] = str(self.torch_lies_path)
        found["PYTHONPATH"] = os.pathsep.join(filter(None, [str(TORCH), found.get("PYTHONPATH", "")]))
        return found
