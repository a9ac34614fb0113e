"""What can be measured: the kinds of probes, data types and collectives, one row each.

Standard library only, and next to nothing of that: the command line asks before it loads anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mltop.probes.model.vocabulary import ProbeKind

START = "start python"
_BEGIN_S = {START: 10.0, "import torch": 30.0, "device": 40.0, "warm": 10.0}
UNKNOWN_STAGE_S = 30.0


class ProbeRow(NamedTuple):
    """``name``: on the command line and in JSON; ``child``: the module in probes/active that measures, and its name in
    the request to a node. ``stages_s``: the stages of a child in their order, and the most seconds of each.

    ``deadline_s``: of a whole run; of collectives with up to MANY_NODES. ``about_s``: how long it takes where torch
    imports in a few seconds. ``total_s``: of a node's part where the caller sets none, None: all stages together.
    ``per_device``: a process for each device, all at the same time, else one for all devices of a node; ``one_gpu``: it
    measures one GPU alone as well; ``least_nodes``: it needs. ``not_on_mig``: why MIG instances are not measured.
    ``in_pairs``: of nodes, round after round; ``has_dtype``: it has one to choose; ``least_size_bytes``: of a size that
    somebody chooses.
    """

    name: ProbeKind
    child: str
    stages_s: Mapping[str, float]
    deadline_s: float
    about_s: float
    per_device: bool = False
    one_gpu: bool = True
    least_nodes: int = 1
    total_s: float | None = None
    not_on_mig: str = ""
    in_pairs: bool = False
    has_dtype: bool = False
    least_size_bytes: int = 1


_LAUNCHER = ProbeRow(
    name="all-reduce",
    child="all_reduce",
    # "measure" is for one size; its rounds are the caller's, whose budget is in the order. All nodes import torch at
    # once, often from one file system.
    stages_s={"listen": 10.0, **_BEGIN_S, "import torch": 50.0, "join": 12.0, "init": 10.0, "measure": 30.0},
    deadline_s=60.0,
    about_s=30.0,
    one_gpu=False,
    total_s=600.0,  # it lives as long as the caller has rounds
    not_on_mig="NCCL does not work between MIG instances",
)
MANY_NODES, MANY_NODES_DEADLINE_S = 64, 120.0
# Import torch alone may take 30 s on a cold disk.
PROBES = (
    ProbeRow(
        "matmul", "matmul", {**_BEGIN_S, "scan": 15.0, "burst": 15.0, "sustained": 15.0, "check": 10.0},
        deadline_s=120.0, about_s=20.0, per_device=True, has_dtype=True,
    ),
    _LAUNCHER,
    ProbeRow(
        "memory", "memory", {**_BEGIN_S, "copy": 20.0},
        deadline_s=90.0, about_s=15.0, per_device=True, least_size_bytes=4096,
    ),
    ProbeRow(
        "copies", "copies", {**_BEGIN_S, "to device": 20.0, "to host": 20.0, "together": 30.0, "peers": 60.0},
        deadline_s=180.0, about_s=30.0,
        not_on_mig="CUDA shows a process one MIG instance at a time, and there are no copies between instances",
    ),
    _LAUNCHER._replace(name="pairs", deadline_s=90.0, about_s=60.0, least_nodes=2, in_pairs=True),
)  # fmt: skip
PROBE_OF: dict[ProbeKind, ProbeRow] = {row.name: row for row in PROBES}
CHILDREN = {row.child: row for row in PROBES if not row.in_pairs}  # pairs are many all-reduces


def stage_deadline_s(child: str, stage: str, ordered_s: Mapping[str, float]) -> float:
    """The deadline of one stage; "measure 256 MiB" takes that of "measure" where it has none of its own. ``ordered_s``:
    the order's deadlines, which are stronger.
    """
    limits_s = {**_BEGIN_S, **(CHILDREN[child].stages_s if child in CHILDREN else {}), **ordered_s}
    words = stage.split(" ")
    names = (" ".join(words[:count]) for count in range(len(words), 0, -1))
    return next((limits_s[name] for name in names if name in limits_s), UNKNOWN_STAGE_S)


def total_s(child: str, ordered_s: Mapping[str, float]) -> float:
    """The most seconds of all stages together."""
    row = CHILDREN[child]
    return sum({**row.stages_s, **ordered_s}.values()) if row.total_s is None else row.total_s


class DType(NamedTuple):
    """A data type of GEMMs. ``torch_name``: of torch's type; ``bytes``, ``output_bytes``: of an element of A and B, and
    of C. ``capability``, ``generation``: the first GPUs whose tensor cores have it (CUDA C++ programming guide,
    "Compute capabilities"). ``units``: what multiplies it on CPUs, best first: flag of /proc/cpuinfo, name; ``on_cpu``
    False: CPUs have no instructions for it. ``precision``: how a GPU adds, where that has to be said.
    """

    name: str
    torch_name: str
    bytes: int
    output_bytes: int
    capability: tuple[int, int] = (0, 0)
    generation: str = ""
    on_cpu: bool = True
    units: tuple[tuple[str, str], ...] = ()
    precision: str = ""

    @property
    def label(self) -> str:
        return self.name.upper()


DTYPES = (
    DType(
        "bf16", "bfloat16", 2, 2, (8, 0), "Ampere",
        units=(("amx_bf16", "AMX"), ("avx512_bf16", "AVX512_BF16"), ("bf16", "BF16")),
    ),
    DType("fp8", "float8_e4m3fn", 1, 2, (8, 9), "Ada and Hopper", on_cpu=False),  # the output is bf16
    DType(
        "fp16", "float16", 2, 2, precision="FP32 accumulation",
        units=(("amx_fp16", "AMX"), ("avx512_fp16", "AVX512_FP16"), ("asimdhp", "FP16")),
    ),
    DType("tf32", "float32", 4, 4, (8, 0), "Ampere", on_cpu=False, precision="TF32 on"),
    DType("fp32", "float32", 4, 4, precision="TF32 off"),
)  # fmt: skip
DTYPE_OF = {dtype.name: dtype for dtype in DTYPES}

# Those of which a rank's result depends on all ranks; the first is what is measured where none is named.
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
