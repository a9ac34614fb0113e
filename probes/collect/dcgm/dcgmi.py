"""nv-hostengine through NVIDIA's tool dcgmi, which only connects to one that runs. For the source's own thread."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import threading
import time
from typing import Callable

from mltop.probes.collect.dcgm.rows import FIELDS, PROFILING, Row, Snapshot
from mltop.probes.system import as_root
from mltop.probes.system.spawn import Unfinished, end_child, output_of, signal_group, start_child

WHERE = "DCGM (dcgmi dmon)"
DISCOVERY_S = 5.0
END_WAIT_S = 0.3
MOST_BYTES = 1 << 20
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
            output, _ = output_of(process, time.monotonic() + timeout_s, self._stop.is_set, MOST_BYTES)
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
