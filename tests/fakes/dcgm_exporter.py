"""A dcgm-exporter: a real HTTP server on this machine that answers in its words, and an nv-hostengine's tool dcgmi."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.fakes.scripts import python_script

PROFILING = {
    "sm_active": "DCGM_FI_PROF_SM_ACTIVE",
    "sm_occupancy": "DCGM_FI_PROF_SM_OCCUPANCY",
    "tensor_active": "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    "dram_active": "DCGM_FI_PROF_DRAM_ACTIVE",
    "fp64_active": "DCGM_FI_PROF_PIPE_FP64_ACTIVE",
    "fp32_active": "DCGM_FI_PROF_PIPE_FP32_ACTIVE",
    "fp16_active": "DCGM_FI_PROF_PIPE_FP16_ACTIVE",
}
# Names since DCGM 4.6 (dcgm_fields.h), where they differ.
RENAMED = {
    "sm_active": "DCGM_FI_PROF_SM_UTIL_RATIO",
    "sm_occupancy": "DCGM_FI_PROF_SM_OCCUPANCY_RATIO",
    "tensor_active": "DCGM_FI_PROF_TENSOR_UTIL_RATIO",
    "dram_active": "DCGM_FI_PROF_DRAM_UTIL_RATIO",
    "fp64_active": "DCGM_FI_PROF_FP64_UTIL_RATIO",
    "fp32_active": "DCGM_FI_PROF_FP32_UTIL_RATIO",
    "fp16_active": "DCGM_FI_PROF_FP16_UTIL_RATIO",
}
ALWAYS = """# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).
# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-0",pci_bus_id="",device="nvidia0",modelName="NVIDIA A100",Hostname="node"} 41
"""


def line(metric: str, value: object, at_ms: int | None = None, **labels: str) -> str:
    """One sample of the Prometheus text, with the exporter's order of labels as given."""
    inside = ",".join(f'{name}="{text}"' for name, text in labels.items())
    return f"{metric}{{{inside}}} {value}" + ("" if at_ms is None else f" {at_ms}")


def gpu_lines(values: dict[str, object], names: dict[str, str] = PROFILING, **labels: str) -> str:
    """The profiling metrics of one GPU; ``labels``: gpu, UUID, pci_bus_id, GPU_I_ID …"""
    return "".join(
        f"# HELP {names[field]} A ratio.\n# TYPE {names[field]} gauge\n{line(names[field], value, **labels)}\n"
        for field, value in values.items()
    )


class FakeExporter:
    """Serves ``text`` on a port of its own until closed. ``status``, ``location``, ``delay_s``, ``requests``."""

    def __init__(self, text: str = "", port: int = 0) -> None:
        self.text = ALWAYS + text
        self.status = 200
        self.delay_s = 0.0
        self.requests = 0
        self.location = ""  # with status 302
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                fake.requests += 1
                time.sleep(fake.delay_s)
                content = fake.text.encode()
                self.send_response(fake.status)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(content)))
                if fake.location:
                    self.send_header("Location", fake.location)
                self.end_headers()
                try:
                    self.wfile.write(content)
                except OSError:  # the client did not wait
                    self.close_connection = True

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self.url = f"http://{self.address}/metrics"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Nothing listens there afterwards."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> FakeExporter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


DISCOVERY = """{count} GPU{s} found.
+--------+----------------------------------------------------------------------+
| GPU ID | Device Information                                                   |
+--------+----------------------------------------------------------------------+
{gpus}
0 NvSwitches found.
"""
ONE_GPU = """| {index}      | Name: NVIDIA A100-SXM4-40GB                                          |
|        | PCI Bus ID: {bus_id}                                         |
|        | Device UUID: {uuid}                |
+--------+----------------------------------------------------------------------+"""
# dcgmi/DeviceMonitor.cpp: a header again and again, a line per entity, all flushed together.
TOOL = """\
import os, sys, time
open({log!r}, "a").write(" ".join(sys.argv[1:]) + f" pid={{os.getpid()}}\\n")
if {fails!r}:
    print({fails!r})
    sys.exit(1)
if sys.argv[1] == "discovery":
    print({discovery!r}, end="")
    sys.exit(0)
assert sys.argv[1:] == ["dmon", "-e", "1002,1003,1004,1005,1006,1007,1008", "-d", "1000"], sys.argv
print("#Entity         SMACT        SMOCC        TENSO        DRAMA        FP64A        FP32A        FP16A")
print("ID", flush=True)
while True:
    print(open({rows!r}).read(), end="", flush=True)
    time.sleep(0.05)
"""


class FakeDcgmi:
    """An executable ``dcgmi`` in ``directory``. ``rows``: what dmon prints again and again."""

    def __init__(self, directory: Path, gpus: list[tuple[str, str]], rows: str, fails: str = "") -> None:
        """``gpus``: UUID and PCI address by DCGM's id; ``fails``: what it prints instead of working."""
        directory.mkdir(parents=True, exist_ok=True)
        self.log = directory / "dcgmi.log"
        self.rows = directory / "dcgmi.rows"
        self.rows.write_text(rows)
        listed = "\n".join(
            ONE_GPU.format(index=index, uuid=uuid, bus_id=bus_id) for index, (uuid, bus_id) in enumerate(gpus)
        )
        discovery = DISCOVERY.format(count=len(gpus), s="" if len(gpus) == 1 else "s", gpus=listed)
        python_script(
            directory / "dcgmi",
            TOOL.format(log=str(self.log), rows=str(self.rows), discovery=discovery, fails=fails),
        )

    def calls(self) -> list[str]:
        """The arguments of every run so far, with "pid=N" at the end."""
        return self.log.read_text().splitlines() if self.log.exists() else []

    def pid(self) -> int:
        """Of the last dmon."""
        return int([call for call in self.calls() if call.startswith("dmon")][-1].rpartition("pid=")[2])
