"""The two ways to ask DCGM, and the rows that both yield: dcgm-exporter over HTTP (metrics in Prometheus text), and
nv-hostengine through NVIDIA's tool dcgmi, which only connects to one that runs.

Only from the source's own thread: everything here may wait.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Callable

from mltop.probes.collect.redaction.shapes import masked, without_user
from mltop.probes.collect.sysfile import same_bus
from mltop.probes.model import GpuSample
from mltop.probes.system import as_root
from mltop.probes.system.spawn import Unfinished, end_child, output_of, signal_group, start_child

# By GpuSample's field, in the order in which dcgmi is asked: DCGM's id (dcgm_fields.h), and what the exporter calls it,
# behind its prefix: before DCGM 4.6 and since.
PROFILING = {
    "sm_active": (1002, "SM_ACTIVE", "SM_UTIL_RATIO"),
    "sm_occupancy": (1003, "SM_OCCUPANCY", "SM_OCCUPANCY_RATIO"),
    "tensor_active": (1004, "PIPE_TENSOR_ACTIVE", "TENSOR_UTIL_RATIO"),
    "dram_active": (1005, "DRAM_ACTIVE", "DRAM_UTIL_RATIO"),
    "fp64_active": (1006, "PIPE_FP64_ACTIVE", "FP64_UTIL_RATIO"),
    "fp32_active": (1007, "PIPE_FP32_ACTIVE", "FP32_UTIL_RATIO"),
    "fp16_active": (1008, "PIPE_FP16_ACTIVE", "FP16_UTIL_RATIO"),
}
FIELDS = tuple(PROFILING)
MAIN_FIELDS = ("sm_active", "tensor_active", "dram_active")
# DCGM_FP64_BLANK; those after it say why (not found, not supported, no permission). 64-bit integers have larger ones.
BLANK = 140737488355328.0
LARGEST = 1.1  # a ratio of two counters may come out a little over 1


@dataclass
class Row:
    """One GPU, or one GPU instance on it (``gpu_instance``: NVML's id). Empty strings: not said.

    ``values``: fractions 0..1 by field name, None where DCGM has none; ``garbage``: values that cannot be.
    ``taken_s``: when it was read, monotonic.
    """

    uuid: str = ""
    bus_id: str = ""
    index: int | None = None
    gpu_instance: int | None = None
    taken_s: float = 0.0
    values: dict[str, float | None] = field(default_factory=dict)
    garbage: dict[str, float] = field(default_factory=dict)

    def put(self, name: str, value: float) -> None:
        """A value as DCGM gave it."""
        if not math.isfinite(value) or value >= BLANK:
            self.values.setdefault(name, None)
        elif 0 <= value <= LARGEST:
            self.values[name] = min(value, 1.0)
        else:
            self.values.setdefault(name, None)
            self.garbage[name] = value

    def is_of(self, gpu: GpuSample) -> bool:
        """Whether the row is of this GPU: by UUID, else by PCI address, by index only where it names neither."""
        if self.uuid and gpu.uuid:
            return self.uuid.lower() == gpu.uuid.lower()
        if self.bus_id and gpu.pci_bus_id:
            return same_bus(self.bus_id, gpu.pci_bus_id)
        return not self.uuid and not self.bus_id and self.index == gpu.index


@dataclass
class Snapshot:
    """The newest row of every GPU and GPU instance. ``where``: who said it, for sentences."""

    rows: list[Row]
    where: str

    def of(self, gpu: GpuSample) -> list[Row]:
        return [row for row in self.rows if row.is_of(gpu)]


PREFIX = "DCGM_FI_PROF_"
_FIELD_OF = {name: field for field, (_, *names) in PROFILING.items() for name in names}
# Label values may hold any character, quotes and backslashes escaped.
_LINE = re.compile(
    PREFIX + r'(\w+)\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\}\s+(\S+)(?:\s+(-?\d+))?\s*', re.ASCII
)  # name, labels, value, unix ms
_LABEL = re.compile(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"', re.ASCII)


def is_of_dcgm(text: str) -> bool:
    """Whether it is dcgm-exporter that speaks, with or without profiling metrics."""
    return text.startswith("DCGM_") or "\nDCGM_" in text or "# HELP DCGM_" in text


def parse(text: str, now: float, now_s: float) -> list[Row]:
    """Returns a row for each GPU and GPU instance. ``now``: unix s, for lines with a time; ``now_s``: monotonic."""
    rows: dict[tuple[str, str, str, str], Row] = {}
    for name, labels, value, at in _samples(text):
        # "uuid" is the label in the exporter's old namespace (--use-old-namespace).
        uuid = labels.get("UUID") or labels.get("uuid") or ""
        key = (uuid, labels.get("pci_bus_id", ""), labels.get("gpu", ""), labels.get("GPU_I_ID", ""))
        row = rows.get(key)
        if row is None:
            row = rows[key] = Row(key[0], key[1], _number(key[2]), _number(key[3]), now_s)
        if at is not None:
            row.taken_s = min(row.taken_s, now_s - max(0.0, now - at))
        row.put(name, value)
    return list(rows.values())


def _samples(text: str) -> Iterator[tuple[str, dict[str, str], float, float | None]]:
    for line in text.splitlines():
        if not line.startswith(PREFIX):
            continue
        sample = _LINE.fullmatch(line)
        field = _FIELD_OF.get(sample[1]) if sample else None
        if sample is None or field is None:
            continue
        with contextlib.suppress(ValueError):  # a line that is none
            at_ms = sample[4]
            yield field, dict(_LABEL.findall(sample[2])), float(sample[3]), int(at_ms) / 1000 if at_ms else None


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


DEFAULT_URL = "http://127.0.0.1:9400/metrics"
MOST_TEXT_BYTES = 8 << 20
CHUNK_BYTES = 1 << 16


@dataclass
class Silence:
    """Why there is nothing from the exporter. ``lacks_profiling``: it is one, but exports other metrics only."""

    why: str
    lacks_profiling: bool = False


class Exporter:
    """One exporter. ``timeout_s`` is for connecting, for each wait for data, and three times that for all of it."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._wrong = ""
        try:
            from urllib.parse import urlsplit

            split = urlsplit(url)
            self.address = without_user(split.netloc)  # said in gaps
            self._host = split.hostname or ""
            self._port = split.port or (443 if split.scheme == "https" else 80)
        except ValueError as error:
            self._wrong = str(error)
        else:
            if split.scheme not in ("http", "https") or not self._host:
                self._wrong = "an address is http://HOST:PORT/metrics"

    def scrape(self) -> Snapshot | Silence:
        """Returns what the exporter says now. Never raises, whatever a server does."""
        if self._wrong:
            return Silence(f"{masked(self._url)!r} is no address of an exporter ({self._wrong})")
        try:  # whether anything listens there, for the price of one system call or two
            socket.create_connection((self._host, self._port), self._timeout_s).close()
        except ConnectionRefusedError:
            return Silence(f"nothing listens on {self.address}")
        except (OSError, OverflowError) as error:
            return Silence(f"{self.address} {reason(error, self._timeout_s)}")
        # Costs some megabytes and milliseconds, which machines without an exporter should not pay.
        import http.client
        import urllib.error
        import urllib.request

        class Straight(urllib.request.HTTPRedirectHandler):
            """Whoever has the port here does not choose where else this machine asks."""

            def redirect_request(self, *_: object) -> None:
                return None

        # A proxy's 127.0.0.1 is another one.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), Straight)
        try:
            with opener.open(self._url, timeout=self._timeout_s) as response:
                text = self._read(response)
        except urllib.error.HTTPError as error:
            error.close()
            return Silence(f"{self.address} answers, but not as dcgm-exporter (HTTP {error.code})")
        except (OSError, ValueError, http.client.HTTPException) as error:
            return Silence(f"{self.address} {reason(error, self._timeout_s)}")
        return self._understand(text)

    def _read(self, response: object) -> str:
        deadline_s = time.monotonic() + 3 * self._timeout_s
        received = bytearray()
        while True:
            data = response.read1(CHUNK_BYTES)  # type: ignore[attr-defined]
            if not data:
                return received.decode("utf-8", "replace")
            received += data
            if len(received) > MOST_TEXT_BYTES:
                raise ValueError(f"sent more than {MOST_TEXT_BYTES >> 20} MiB")
            if time.monotonic() > deadline_s:
                raise TimeoutError

    def _understand(self, text: str) -> Snapshot | Silence:
        rows = parse(text, time.time(), time.monotonic())
        if rows:
            return Snapshot(rows, f"dcgm-exporter on {self.address}")
        if not is_of_dcgm(text):
            return Silence(f"{self.address} answers, but not as dcgm-exporter")
        why = f"dcgm-exporter on {self.address} exports no activity (DCGM_FI_PROF_SM_ACTIVE and others)"
        return Silence(why, lacks_profiling=True)


def reason(error: Exception, timeout_s: float) -> str:
    """Why a connection failed, as the end of a sentence."""
    inner = getattr(error, "reason", error)
    if isinstance(inner, (TimeoutError, socket.timeout)):
        return f"does not answer within {timeout_s:g} s"
    text = getattr(inner, "strerror", None) or str(inner) or type(inner).__name__
    return f"cannot be read: {text}"


WHERE = "DCGM (dcgmi dmon)"
DISCOVERY_S = 5.0
END_WAIT_S = 0.3
MOST_OUTPUT_BYTES = 1 << 20
READ_WAIT_S = 0.2  # so soon it notices that it is to end
# "GPU 0    0.123  N/A ..." (dcgmi/DeviceMonitor.cpp); older releases wrote "GPU 0" too. GPU-I ids are DCGM's own.
_ROW = re.compile(r"GPU\s+(\d+)((?:\s+\S+)+)\s*")
# Of `dcgmi discovery -l`: "| 0      | Name: ...  |", "|        | PCI Bus ID: 00000000:07:00.0 |", "| Device UUID: ...".
_GPU_ID = re.compile(r"\|\s*(\d+)\s*\|")
_BUS_ID = re.compile(r"PCI Bus ID:\s*([0-9A-Fa-f:.]+)")
_UUID = re.compile(r"Device UUID:\s*(\S+)")


class DcgmiError(Exception):
    """dcgmi gives no values; the text is the end of a sentence."""


class NoDcgmi(DcgmiError):
    """The tool is not installed."""


class Dcgmi:
    """``dcgmi dmon`` as a child that lives as long as it yields values."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def watch(self, take: Callable[[Snapshot], None], is_wanted: Callable[[], bool]) -> None:
        """Give each second's values to ``take`` until the child ends, is stopped, or is not wanted any more.

        Raises DcgmiError, also when it ends by itself.
        """
        tool = as_root.find_program("dcgmi")
        if tool is None:
            raise NoDcgmi("no dcgmi on PATH")
        gpus = parse_discovery(self._output([tool, "discovery", "-l"], DISCOVERY_S))
        if not gpus:
            raise DcgmiError("dcgmi reaches no nv-hostengine")
        fields = ",".join(str(number) for number, *_ in PROFILING.values())
        process = self._start([tool, "dmon", "-e", fields, "-d", "1000"])
        try:
            last = self._follow(process, gpus, take, is_wanted)
        finally:
            self._end()
        if last is not None:
            raise DcgmiError(f"dcgmi dmon ended: {last}")

    def close(self) -> None:
        """Have the child end. From any thread: the one that reads its pipe sees to it that it does."""
        with self._lock:
            if self._process is not None:
                signal_group(self._process, signal.SIGTERM)

    def _end(self) -> None:
        """SIGTERM, SIGKILL after 0.3 s. For the thread that reads its pipe."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            end_child(process, term_s=END_WAIT_S, kill_s=END_WAIT_S)

    def _start(self, command: list[str]) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._stop.is_set():
                raise DcgmiError("mltop ends")
            try:
                self._process = start_child(command)
            except OSError as error:
                raise DcgmiError(f"dcgmi cannot be started: {error}") from None
            return self._process

    def _output(self, command: list[str], timeout_s: float) -> str:
        process = self._start(command)
        try:
            output, _ = output_of(process, time.monotonic() + timeout_s, self._stop.is_set, MOST_OUTPUT_BYTES)
        except Unfinished:
            raise DcgmiError(f"dcgmi discovery does not answer within {timeout_s:g} s") from None
        finally:
            self._end()
        return output.decode("utf-8", "replace")

    def _follow(
        self,
        process: subprocess.Popen[bytes],
        gpus: dict[int, Row],
        take: Callable[[Snapshot], None],
        is_wanted: Callable[[], bool],
    ) -> str | None:
        """The last words of a child that ended by itself, None when we ended it."""
        received = b""
        newest: dict[int | None, Row] = {}
        last_words = "no output"
        while not self._stop.is_set() and is_wanted():
            data = read_some(process, READ_WAIT_S)
            if data == b"":
                return None if self._stop.is_set() else last_words
            if data is None:
                continue
            *lines, received = (received + data).split(b"\n")
            for line in lines:
                text = line.decode("utf-8", "replace").strip()
                row = parse_row(text, gpus)
                if row is not None:
                    newest[row.index] = row
                elif text:
                    last_words = text
            if newest:
                take(Snapshot(list(newest.values()), WHERE))
        return None


def read_some(process: subprocess.Popen[bytes], wait_s: float) -> bytes | None:
    """What the child wrote; None when it wrote nothing in this time, b"" at its end."""
    assert process.stdout is not None
    poll = select.poll()
    poll.register(process.stdout.fileno(), select.POLLIN)
    if not poll.poll(wait_s * 1000):
        return None
    return os.read(process.stdout.fileno(), 65536)


def parse_discovery(text: str) -> dict[int, Row]:
    """GPUs by DCGM's id, from ``dcgmi discovery -l``; empty when it could not connect."""
    gpus: dict[int, Row] = {}
    current: Row | None = None
    for line in text.splitlines():
        number, bus_id, uuid = _GPU_ID.match(line), _BUS_ID.search(line), _UUID.search(line)
        if number and "Name:" in line:
            current = gpus[int(number.group(1))] = Row(index=int(number.group(1)))
        if current is not None and bus_id:
            current.bus_id = bus_id.group(1)
        if current is not None and uuid:
            current.uuid = uuid.group(1)
    return gpus


def parse_row(line: str, gpus: dict[int, Row]) -> Row | None:
    """The values in one line of ``dcgmi dmon``; None for headers, errors, MIG entities and GPUs that are not known."""
    match = _ROW.fullmatch(line)
    gpu = gpus.get(int(match[1])) if match else None
    if match is None or gpu is None:
        return None
    cells = match[2].split()
    if len(cells) != len(FIELDS):
        return None
    row = Row(gpu.uuid, gpu.bus_id, gpu.index, taken_s=time.monotonic())
    for name, cell in zip(FIELDS, cells):
        try:
            row.put(name, float(cell))
        except ValueError:  # "N/A"
            row.values.setdefault(name, None)
    return row
