"""Where a rank stands in its job's parallel layout, from what command lines and titles say; nothing is guessed.

Axes: tp, pp, dp, cp, ep (of tensor, pipeline, data, context, expert parallelism), and the sizes "tp_size", … of those
that have more than one.

Sources: Megatron-LM's arguments.py and parallel_state.py, vLLM's set_process_title and engine arguments, SGLang's
server_args.py and its schedulers' titles, TensorRT-LLM's Mapping, DeepSpeed's topology.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

MOST_OF_AN_AXIS = 1 << 20
_AXES = ("tp", "pp", "dp", "cp", "ep")


@dataclass(frozen=True)
class Framework:
    """``flags`` by axis; ``marks``: one of them must be there; ``unknowable``: with one of these the sizes stand
    elsewhere, too. ``order``: of the axes, the first changes fastest from rank to rank.

    ``others_are_one``: what is not given is 1; otherwise it is not known.
    """

    name: str
    flags: Mapping[str, tuple[str, ...]]
    order: tuple[str, ...]
    marks: tuple[str, ...] = ()
    unknowable: tuple[str, ...] = ()
    others_are_one: bool = True


_MEGATRON_MARKS = ("--tensor-model-parallel-size", "--pipeline-model-parallel-size")
_VLLM_FLAGS = {
    "tp": ("--tensor-parallel-size", "-tp"),
    "pp": ("--pipeline-parallel-size", "-pp"),
    "dp": ("--data-parallel-size", "-dp"),
}
_SGLANG_FLAGS = {
    "tp": ("--tensor-parallel-size", "--tp-size", "--tp"),
    "pp": ("--pipeline-parallel-size", "--pp-size", "--pp"),
    "dp": ("--data-parallel-size", "--dp-size", "--dp"),
}
MEGATRON = Framework(
    "megatron",
    {
        "tp": ("--tensor-model-parallel-size",),
        "pp": ("--pipeline-model-parallel-size",),
        "cp": ("--context-parallel-size",),
        "ep": ("--expert-model-parallel-size",),
    },
    ("tp", "cp", "dp", "pp"),
    _MEGATRON_MARKS,
    (
        *("--use-checkpoint-args", "--yaml-cfg", "--encoder-tensor-model-parallel-size"),
        *("--hierarchical-context-parallel-sizes", "--ds-sequence-parallel-size"),
    ),
)
_PP_BEFORE_DP = ("tp", "cp", "pp", "dp")  # Megatron's --use-tp-pp-dp-mapping
DEEPSPEED = Framework(
    "deepspeed",
    {"pp": ("--pipeline-parallel-size", "--pipe-parallel-size"), "tp": ("--model-parallel-size",)},
    ("tp", "dp", "pp"),
    ("--pipeline-parallel-size", "--pipe-parallel-size"),
    others_are_one=False,
)
_TRT_FLAGS = {"tp": ("--tp_size", "--tp-size"), "pp": ("--pp_size", "--pp-size")}
TENSORRT_LLM = Framework("tensorrt-llm", _TRT_FLAGS, ("tp", "pp"), sum(_TRT_FLAGS.values(), ()))
VLLM = Framework("vllm", _VLLM_FLAGS, ("tp", "pp", "dp"), unknowable=("--config",))
SGLANG = Framework("sglang", _SGLANG_FLAGS, ("tp", "pp", "dp"), unknowable=("--config",))

_NUMBER = re.compile(r"\d{1,7}", re.ASCII)
_LEFT_OUT = "…"  # what a command line ends in that is longer than what was read of it


@dataclass(frozen=True)
class Title:
    """What a process calls itself. ``kind``: a worker is a rank; an engine is one when it has no workers."""

    framework: Framework
    kind: Literal["worker", "engine", "other"]
    place: dict[str, int]


# vLLM's prefix may be chosen (VLLM_PROCESS_NAME_PREFIX). Only axes with more than one place stand in titles.
_VLLM_TITLE = re.compile(
    r"(?!ray::)[\w.-]{1,64}::(Worker|EngineCore|APIServer|DPCoordinator)"
    r"((?:_(?:DP|PP|PCP|TP|DCP|EP)\d{1,6}){0,6})(?:_\d{1,6})?",
    re.ASCII,
)
_SGLANG_TITLE = re.compile(r"sglang::(\w+?)((?:_(?:DP|PP|TP|EP|CP)\d{1,6}){0,5})", re.ASCII)
_AXIS = re.compile(r"_([A-Z]+)(\d+)")


def title_of(argv: Sequence[str]) -> Title | None:
    """Of a server's process, None for any other: ``VLLM::Worker_PP0_TP1``, ``sglang::scheduler_TP3``."""
    text = argv[0].strip() if argv else ""
    if "::" not in text:
        return None
    vllm, sglang = _VLLM_TITLE.fullmatch(text), _SGLANG_TITLE.fullmatch(text)
    if sglang is not None:
        return Title(SGLANG, "worker" if sglang[1] == "scheduler" else "other", _places(sglang[2]))
    if vllm is None or (vllm[1] != "Worker" and not text.startswith("VLLM::")):
        return None
    kinds: dict[str, Literal["worker", "engine", "other"]] = {"Worker": "worker", "EngineCore": "engine"}
    return Title(VLLM, kinds.get(vllm[1], "other"), _places(vllm[2]))


def _places(text: str) -> dict[str, int]:
    return {name.lower(): int(number) for name, number in _AXIS.findall(text)}


def sizes_of(argv: Sequence[str], framework: Framework) -> dict[str, int] | None:
    """The sizes by axis that a command line gives, None where it does not tell (all of them)."""
    if not argv or argv[-1].endswith(_LEFT_OUT):
        return None
    given = [word.partition("=")[0] for word in argv]
    if any(flag in given for flag in framework.unknowable):
        return None
    if framework.marks and not any(mark in given for mark in framework.marks):
        return None
    sizes: dict[str, int] = {}
    for axis, flags in framework.flags.items():
        number = argument(argv, flags)
        if number is not None and 1 <= number <= MOST_OF_AN_AXIS:
            sizes[axis] = number
        elif number is not None or any(flag in given for flag in flags):
            return None
        elif framework.others_are_one:
            sizes[axis] = 1
    return sizes


def argument(argv: Sequence[str], flags: Sequence[str]) -> int | None:
    """The number that one of these options has, the last one's."""
    found = None
    for index, word in enumerate(argv):
        name, separator, value = word.partition("=")
        if name in flags:
            value = value if separator else argv[index + 1] if index + 1 < len(argv) else ""
            found = int(value) if _NUMBER.fullmatch(value) else None
    return found


def parallel_of(
    command_lines: Iterable[Sequence[str]], rank: int | None, world_size: int | None, launcher: str
) -> dict[str, int]:
    """A training rank's place and sizes by the first of its own and its launchers' command lines that tells; {} when
    none does, or when they do not fit the world size.
    """
    if rank is None or not world_size or rank >= world_size:
        return {}
    for argv in command_lines:
        frameworks = [MEGATRON, *([DEEPSPEED] if launcher == "deepspeed" else [])]
        if any(word.rpartition("/")[2].startswith("trtllm-") for word in argv[:4]):
            frameworks.append(TENSORRT_LLM)
        for framework in frameworks:
            sizes = sizes_of(argv, framework)
            if sizes is not None:
                order = _PP_BEFORE_DP if "--use-tp-pp-dp-mapping" in argv else framework.order
                own_expert_tp = any(word.startswith("--expert-tensor-parallel-size") for word in argv)
                return _place(sizes, order, rank, world_size, own_expert_tp)
    return {}


def _place(
    sizes: dict[str, int], order: Sequence[str], rank: int, world_size: int, own_expert_tp: bool
) -> dict[str, int]:
    """The place of ``rank`` where the axes follow each other in ``order``; dp takes what the others leave."""
    others = 1
    for axis in order:
        others *= sizes.get(axis, 1)
    if "dp" in order:
        if not all(axis in sizes for axis in order if axis != "dp"):
            # The place on the axis that changes most slowly.
            slowest, size = order[-1], sizes.get(order[-1], 0)
            if not size or world_size % size:
                return {}
            return shown_layout({slowest: rank // (world_size // size)}, {slowest: size})
        if world_size % others:
            return {}
        sizes = {**sizes, "dp": world_size // others}
    elif world_size != others:
        return {}
    place, left = {}, rank
    for axis in order:
        place[axis], left = left % sizes[axis], left // sizes[axis]
    experts = sizes.get("ep", 1)
    if experts > 1 and not own_expert_tp and (sizes["tp"] * sizes["dp"] * sizes["cp"]) % (sizes["tp"] * experts) == 0:
        place["ep"] = rank // sizes["tp"] % experts
    return shown_layout(place, sizes)


def shown_layout(place: dict[str, int], sizes: dict[str, int]) -> dict[str, int]:
    """What is worth showing: axes with more than one place."""
    shown = {}
    for axis in _AXES:
        if axis in place and sizes.get(axis, 2) > 1:
            shown[axis] = place[axis]
            if axis in sizes:
                shown[f"{axis}_size"] = sizes[axis]
    return shown


def server_rank(title: Title, sizes: dict[str, int], attention_dp: bool = False) -> int | None:
    """The number of a server's worker among all of its engines', None where a size that counts is not known.

    ``attention_dp``: its dp is a part of tp (SGLang's --enable-dp-attention).
    """
    number, step = 0, 1
    for axis in title.framework.order:
        if axis == "dp" and attention_dp:
            continue
        place = title.place.get(axis, 0)
        if place:
            number += place * step
        size, order = sizes.get(axis), title.framework.order
        later = [other for other in order[order.index(axis) + 1 :] if not (other == "dp" and attention_dp)]
        if size is None and any(title.place.get(other, 0) for other in later):
            return None
        step *= size or 1
        if size is not None and place >= size:
            return None
    return number
