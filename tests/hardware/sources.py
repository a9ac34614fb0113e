"""Second sources: who else on this machine can tell what mltop tells about a GPU. Each says why it has nothing to say.

nvidia-smi is only asked what it can be asked without effect (READING). ``mltop.probes.system.paths`` finds files.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from mltop.probes.system import paths
from tests.hardware.checks import NotTriedError, Told

KILL_S = 5.0
MOST_WORDS_BYTES = 1 << 20
SMI_S = 60.0  # without persistence mode nvidia-smi initialises every GPU first
# All that nvidia-smi may be asked here: whole words, or how a word begins.
READING = ("-q", "-x", "nvlink", "--status", "--errorcounters", "dmon", "--select=p", "--delay=1")
READING_STARTS = (
    "--query-gpu=",
    "--query-compute-apps=",
    "--format=csv,noheader,nounits",
    "--id=",
    "--count=",
    "--gpm-metrics=",
)
INFOROM_CORRUPT = 14  # nvidia-smi(1), RETURN VALUE: it has answered all the same, and adds a line that warns
# What nvidia-smi prints instead of a value, in brackets where it prints CSV.
_NONE = {"n/a", "not supported", "requested functionality has been deprecated"}
_UNKNOWN = {
    "",
    "unknown error",
    "err!",
    "insufficient permissions",
    "gpu requires reset",
    "gpu is lost",
    "not found",
    "unknown",
}
_END_OF_XML = re.compile(r"(</nvidia_smi_log>).*", re.DOTALL)  # warnings stand behind it
_NO_FIELD = re.compile(r'Field "([^"]+)" is not a valid field to query')


class SmiError(NotTriedError):
    """nvidia-smi cannot be asked; the text says why."""


def smi(*words: str) -> str:
    """What nvidia-smi prints. SmiError when it is not there, fails or hangs; ValueError for what may have an effect."""
    for word in words:
        if word not in READING and not word.startswith(READING_STARTS):
            raise ValueError(f"nvidia-smi {word} is not known to change nothing")
    program = shutil.which("nvidia-smi")
    if program is None:
        raise SmiError("nvidia-smi is not on PATH")
    try:
        done = run_for(SMI_S, [program, *words])
    except subprocess.TimeoutExpired:
        raise SmiError(f"nvidia-smi did not answer within {SMI_S:g} s") from None
    except OSError as error:
        raise SmiError(f"nvidia-smi cannot be started: {error}") from None
    if done.returncode not in (0, INFOROM_CORRUPT):
        said = (done.stdout + done.stderr).strip().splitlines()
        raise SmiError(said[0] if said else f"nvidia-smi ended with {done.returncode}")
    return done.stdout


def run_for(seconds: float, command: list[str]) -> subprocess.CompletedProcess[str]:
    """subprocess.run, but what is stuck in the driver, where no signal reaches it, is left behind, not waited for.

    Raises subprocess.TimeoutExpired, OSError.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    try:
        out, errors = process.communicate(timeout=seconds)
    except BaseException:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(KILL_S)
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()
        raise
    return subprocess.CompletedProcess(command, process.returncode, out, errors)


_RAISED = re.compile(r"[\w.]+(?:Error|Exception|Interrupt): .")


def last_words(text: str) -> str:
    """Of what a program said on stderr the line that tells most: torch explains its errors in lines behind them. "" for
    none.
    """
    lines = text.strip().splitlines()
    raised = [line for line in lines if _RAISED.match(line)]
    return (raised or lines or [""])[-1]


def last_words_in(errors: IO[Any]) -> str:
    """Of what a child has written there so far: it goes on where it was, as its place in the file is not moved."""
    end = os.fstat(errors.fileno()).st_size
    words = os.pread(errors.fileno(), MOST_WORDS_BYTES, max(0, end - MOST_WORDS_BYTES))
    return last_words(words.decode(errors="replace"))


def smi_gpm(index: int, count: int, metrics: tuple[int, ...]) -> dict[int, list[float]]:
    """GPM's metrics (ids of nvml.h, percent), one value a second, as `nvidia-smi dmon` prints them. Raises SmiError.

    The first of its rows are of no time at all: one or two, of zeros or of "-".
    """
    numbers = ",".join(map(str, metrics))
    words = ("dmon", f"--id={index}", "--select=p", f"--count={count}", "--delay=1", f"--gpm-metrics={numbers}")
    return gpm_rows(smi(*words), index, metrics)


def gpm_rows(text: str, index: int, metrics: tuple[int, ...]) -> dict[int, list[float]]:
    """Of what `nvidia-smi dmon` prints: a line of names, one of units, then rows. SmiError where it has no values."""
    rows = [line.lstrip("#").split() for line in text.splitlines()]
    units = next((row for row in rows if row[:1] == ["Idx"]), [])
    columns = [place for place, unit in enumerate(units) if unit.startswith("GPM:")]
    if len(columns) != len(metrics):
        raise SmiError(f"nvidia-smi dmon prints {len(columns)} columns of GPM, not {len(metrics)}")
    values = [[row[place] for place in columns] for row in rows if row[:1] == [str(index)] and len(row) == len(units)]
    told = [row for row in values[1:] if all(re.fullmatch(r"\d+(?:\.\d+)?", cell) for cell in row)]
    if not told:
        raise SmiError("nvidia-smi dmon prints no values of GPM")
    return {metric: [float(row[place]) for row in told] for place, metric in enumerate(metrics)}


def told(text: str | None, source: str) -> Told:
    """A value as nvidia-smi prints it, or why it is none."""
    if text is None:
        return Told(why=f"{source}: this nvidia-smi does not tell it")
    stripped = text.strip()
    plain = stripped.strip("[]").lower()
    if plain in _NONE:
        return Told(why=f"{source} says {stripped}", unsupported=True)
    if plain in _UNKNOWN:
        return Told(why=f"{source} says {stripped or 'nothing'}")
    return Told(stripped)


@dataclass
class Query:
    """`nvidia-smi --query-gpu` over all GPUs, by index. Fields that this nvidia-smi does not know are left out."""

    fields: list[str]
    refused: dict[str, str] = field(default_factory=dict)  # by field, why

    def ask(self, *words: str) -> dict[str, dict[str, str]]:
        """By index, then field. ``words``: what else nvidia-smi is told. SmiError as smi()."""
        while True:
            asked = ["index", *(name for name in self.fields if name not in self.refused)]
            try:
                text = smi(f"--query-gpu={','.join(asked)}", "--format=csv,noheader,nounits", *words)
            except SmiError as error:
                found = _NO_FIELD.search(str(error))
                if found is None or found[1] not in asked[1:]:
                    raise
                self.refused[found[1]] = f"this nvidia-smi has no {found[1]}"
                continue
            rows = [[cell.strip() for cell in line.split(", ")] for line in text.splitlines() if line.strip()]
            return {row[0]: dict(zip(asked, row, strict=True)) for row in rows if len(row) == len(asked)}

    def told(self, answer: dict[str, dict[str, str]], index: str, name: str) -> Told:
        source = f"nvidia-smi {name}"
        if name in self.refused:
            return Told(why=self.refused[name])
        if index not in answer:
            return Told(why=f"nvidia-smi does not list GPU {index}")
        return told(answer[index].get(name), source)


class SmiXml:
    """`nvidia-smi -q -x`, by PCI address as nvidia-smi writes it. ``text``: as it was printed."""

    def __init__(self, text: str) -> None:
        """SmiError when it cannot be read."""
        self.text = _END_OF_XML.sub(r"\1\n", text)
        try:
            self._root = ET.fromstring(re.sub(r"<!DOCTYPE[^>]*>", "", self.text, count=1))
        except ET.ParseError as error:
            raise SmiError(f"nvidia-smi -q -x: {error}") from None
        self._gpus = {gpu.get("id", "").upper(): gpu for gpu in self._root.findall("gpu")}

    @classmethod
    def ask(cls, *words: str) -> SmiXml:
        return cls(smi("-q", "-x", *words))

    def only(self, bus_id: str, *names: str) -> str:
        """The text with nothing but these elements of one GPU."""
        root = ET.Element(self._root.tag)
        gpu = self._gpus.get(bus_id.upper())
        if gpu is not None:
            kept = ET.SubElement(root, "gpu", {"id": bus_id})
            kept.extend(part for part in gpu if part.tag in names)
        return ET.tostring(root, encoding="unicode")

    def system(self, path: str) -> Told:
        return told(self._root.findtext(path), f"nvidia-smi -q {path}")

    def told(self, bus_id: str, *wanted: str) -> Told:
        """The first of these paths below the GPU that is there: names changed with drivers."""
        gpu = self._gpus.get(bus_id.upper())
        if gpu is None:
            return Told(why=f"nvidia-smi -q does not list {bus_id or 'this GPU'}")
        for path in wanted:
            text = gpu.findtext(path)
            if text is not None:
                return told(text, f"nvidia-smi -q {path}")
        for path in wanted:  # <remapped_rows>N/A</remapped_rows> stands for all that is in it elsewhere
            above = path.rpartition("/")[0]
            while above:
                whole = told(gpu.findtext(above), f"nvidia-smi -q {above}")
                if whole.unsupported:
                    return whole
                above = above.rpartition("/")[0]
        return Told(why=f"nvidia-smi -q has no {wanted[0]}")

    def children(self, bus_id: str, path: str) -> list[dict[str, str]] | None:
        """The elements below ``path`` as dicts of what is in them; None when there is no such path."""
        gpu = self._gpus.get(bus_id.upper())
        parent = None if gpu is None else gpu.find(path)
        if parent is None:
            return None
        return [{part.tag: (part.text or "").strip() for part in one.iter()} for one in parent]


def kernel_module_version() -> str | None:
    """Of /proc/driver/nvidia/version: "580.95.05"."""
    try:
        text = Path(paths.proc("driver/nvidia/version")).read_text(errors="replace")
    except OSError:
        return None
    found = re.search(r"NVRM version:.*?\s(\d{3,}(?:\.\d+)+)\s", text)
    return found[1] if found else None


def proc_information(bus_id: str) -> dict[str, str] | str:
    """/proc/driver/nvidia/gpus/<bus id>/information, or why there is none. ``bus_id``: as sysfs writes it."""
    path = Path(paths.proc("driver/nvidia/gpus", bus_id, "information"))
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        return f"{path}: {error.strerror}"
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def pci_attribute(bus_id: str, name: str) -> Told:
    """Of the PCI device in sysfs."""
    path = Path(paths.sys("bus/pci/devices", bus_id, name))
    try:
        return told(path.read_text(errors="replace"), f"sysfs {name}")
    except OSError as error:
        return Told(why=f"{path}: {error.strerror}")


def sysfs_bus_id(nvml: str) -> str:
    """ "00000000:18:00.0" as the kernel writes it: "0000:18:00.0"."""
    domain, _, rest = nvml.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"
