"""All second sources at one moment, and readers that take one value of one GPU out of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.hardware import machine
from tests.hardware.checks import Told
from tests.hardware.context import Context
from tests.hardware.sources import Query, SmiError, SmiXml, pci_attribute, proc_information, smi, sysfs_bus_id

VIOLATIONS = """
import json, pynvml
pynvml.nvmlInit()
def status(handle, policy):
    try: return pynvml.nvmlDeviceGetViolationStatus(handle, policy).violationTime
    except pynvml.NVMLError: return None
handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
print(json.dumps([[status(handle, policy) for policy in range(6)] for handle in handles]))
"""
TORCH = """
import json, torch
found = []
for index in range(torch.cuda.device_count()):
    one = torch.cuda.get_device_properties(index)
    found.append(dict(name=one.name, total_memory=one.total_memory, uuid=str(getattr(one, "uuid", "") or "")))
print(json.dumps(found))
"""
_INSTANCE = re.compile(r" MIG \d+")  # "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
_BUS_ID = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]")
_LINK = re.compile(r"^\s*Link (\d+): (.*?)\s*$")


@dataclass
class Asked:
    """What they said. By index of the GPU, as NVML and nvidia-smi count. Whatever could not be asked says why."""

    query: Query
    rows: dict[str, dict[str, str]]
    xml: SmiXml
    apps: list[list[str]] | str = ""
    violations: list[list[int | None]] | str = "not asked"
    links: dict[str, dict[int, list[str]] | str] = field(default_factory=dict)  # status, errorcounters
    torch: list[dict[str, Any]] | str = "not asked"
    sysfs: dict[str, dict[str, str]] = field(default_factory=dict)  # of MOVING what can be read

    @classmethod
    def smi_alone(cls, query: Query, index: int | None = None) -> Asked:
        """Only nvidia-smi's two answers, of all GPUs or of one. SmiError when it does not answer at all."""
        words = () if index is None else (f"--id={index}",)  # all of eight may take it seconds
        return cls(query, query.ask(*words), SmiXml.ask(*words))

    @classmethod
    def now(cls, query: Query, context: Context) -> Asked:
        """What moves. SmiError when nvidia-smi does not answer at all."""
        asked = cls.smi_alone(query)
        asked.sysfs = {index: moving(asked.bus_id(int(index))) for index in asked.rows if index.isdigit()}
        asked.violations = machine.ask(context.pythons.mltop, VIOLATIONS)
        asked.apps = _or_why(lambda: [line.split(", ") for line in smi(*APPS).splitlines() if line.strip()])
        return asked

    def with_rest(self, context: Context) -> Asked:
        """What hardly moves, and torch, whose context takes memory on the first GPU: asked once, at the end."""
        for option in ("status", "errorcounters"):
            self.links[option] = _or_why(lambda option=option: link_lines(smi("nvlink", f"--{option}")))  # type: ignore[misc]
        gap = context.machine.gaps.get("torch")
        self.torch = gap or machine.ask(context.pythons.torch, TORCH)
        return self

    def to_json(self, xml: str = "") -> dict[str, Any]:
        """``xml``: what to keep of nvidia-smi -q -x."""
        return {
            "rows": self.rows,
            "refused": self.query.refused,
            "apps": self.apps,
            "violations": self.violations,
            "links": self.links,
            "torch": self.torch,
            "sysfs": self.sysfs,
            "xml": xml,
        }

    @classmethod
    def of(cls, data: dict[str, Any], xml: str = "") -> Asked:
        """What ``to_json`` made of it; ``xml`` where that is kept elsewhere."""
        links = {
            option: found if isinstance(found, str) else {int(gpu): lines for gpu, lines in found.items()}
            for option, found in data["links"].items()
        }
        query = Query(sorted({name for row in data["rows"].values() for name in row}), dict(data["refused"]))
        told = SmiXml(xml or data["xml"])
        rest = (data["apps"], data["violations"], links, data["torch"], data["sysfs"])
        return cls(query, data["rows"], told, *rest)

    def bus_id(self, index: int) -> str:
        """As nvidia-smi writes it; "" when it does not."""
        found = self.rows.get(str(index), {}).get("pci.bus_id", "")
        return found if _BUS_ID.fullmatch(found) else ""


MOVING = ("current_link_speed", "current_link_width")  # in sysfs: a link that is idle may be slow


def moving(bus_id: str) -> dict[str, str]:
    told = {name: pci_attribute(sysfs_bus_id(bus_id), name) for name in MOVING} if bus_id else {}
    return {name: one.value for name, one in told.items() if one.value is not None}


APPS = ("--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader,nounits")
Reader = Callable[[Asked, int], Told]
FIELDS: list[str] = []  # all that `query` was ever asked to read


def query(*names: str, convert: Callable[[str], Any] = str) -> Reader:
    """The first of these fields of `nvidia-smi --query-gpu` that has a value: names changed with drivers."""
    FIELDS.extend(name for name in names if name not in FIELDS)

    def read(asked: Asked, index: int) -> Told:
        found = [asked.query.told(asked.rows, str(index), name) for name in names]
        return converted(next((one for one in found if one.value is not None), found[0]), convert)

    return read


def xml(*paths: str, convert: Callable[[str], Any] = str) -> Reader:
    """The first of these elements of `nvidia-smi -q -x` that is there."""
    return lambda asked, index: converted(asked.xml.told(asked.bus_id(index), *paths), convert)


def proc(name: str) -> Reader:
    """A line of /proc/driver/nvidia/gpus/<bus id>/information."""

    def read(asked: Asked, index: int) -> Told:
        if not asked.bus_id(index):
            return Told(why="nvidia-smi does not tell the PCI address")
        found = proc_information(sysfs_bus_id(asked.bus_id(index)))
        if isinstance(found, str):
            return Told(why=found)
        value = found.get(name, "")
        if value.upper() == "N/A":
            return Told(why=f"/proc/driver/nvidia says {name} is N/A", unsupported=True)
        hidden = "?" in value  # before the GPU is initialised
        return Told(value) if value and not hidden else Told(why=f"/proc/driver/nvidia tells no {name}")

    return read


def sysfs(name: str, convert: Callable[[str], Any] = str) -> Reader:
    """Of the PCI device; what moves as it was then."""

    def read(asked: Asked, index: int) -> Told:
        if not asked.bus_id(index):
            return Told(why="nvidia-smi does not tell the PCI address")
        then = asked.sysfs.get(str(index), {}).get(name)
        told = pci_attribute(sysfs_bus_id(asked.bus_id(index)), name) if then is None else Told(then)
        return converted(told, convert)

    return read


def torch(name: str, convert: Callable[[str], Any] = str) -> Reader:
    """Found by UUID, or as the only one: torch counts GPUs its own way."""

    def read(asked: Asked, index: int) -> Told:
        if isinstance(asked.torch, str):
            return Told(why=f"torch: {asked.torch}")
        uuid = asked.rows.get(str(index), {}).get("uuid", "").removeprefix("GPU-")
        own = [one for one in asked.torch if one["uuid"].removeprefix("GPU-") == uuid]
        if not own and len(asked.torch) == len(asked.rows) == 1:
            own = asked.torch
        if own and _INSTANCE.search(own[0]["name"]):
            return Told(why="MIG is enabled on this GPU: torch sees only an instance of it")
        return converted(Told(str(own[0][name])), convert) if own else Told(why="torch does not list this GPU")

    return read


def violation(policy: int) -> Reader:
    """Nanoseconds of nvmlDeviceGetViolationStatus, the call that came before the numbered fields."""

    def read(asked: Asked, index: int) -> Told:
        if isinstance(asked.violations, str):
            return Told(why=f"nvmlDeviceGetViolationStatus: {asked.violations}")
        value = asked.violations[index][policy] if index < len(asked.violations) else None
        return Told(value) if value is not None else Told(why="nvmlDeviceGetViolationStatus has none", unsupported=True)

    return read


def links(option: str, convert: Callable[[list[str]], Any]) -> Reader:
    """Of the lines about a GPU's links."""

    def read(asked: Asked, index: int) -> Told:
        found = asked.links.get(option, "not asked")
        if isinstance(found, str):
            return Told(why=f"nvidia-smi nvlink --{option}: {found}")
        if not found.get(index):
            return Told(why=f"nvidia-smi nvlink --{option} lists no link", unsupported=True)
        return Told(convert(found[index]))

    return read


def link_lines(text: str) -> dict[int, list[str]]:
    """By GPU, "LINK: TEXT"."""
    found: dict[int, list[str]] = {}
    gpu = -1
    for line in text.splitlines():
        head = re.match(r"GPU (\d+):", line)
        link = _LINK.match(line)
        if head:
            gpu = int(head[1])
        elif link:
            found.setdefault(gpu, []).append(f"{link[1]}: {link[2]}")
    return found


def converted(told: Told, convert: Callable[[str], Any]) -> Told:
    if told.value is None:
        return told
    try:
        return Told(convert(told.value))
    except (ValueError, KeyError, IndexError):
        return Told(why=f"it says {told.value!r}, which this check cannot read")


def _or_why(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except SmiError as error:
        return str(error)
