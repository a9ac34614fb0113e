"""What the words and marks of the screen mean: one table, for the help of the screen and `mltop help terms`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mltop.probes.model.vocabulary import WorkState
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.states import DOING

Terms = tuple[tuple[str, str], ...]

_STATES: Mapping[WorkState, str] = MappingProxyType(
    {
        "works": "it computes",
        "waits": "in a collective, for other ranks",
        "stands": "the culprit: the others wait for it",
        "stalled": "its job makes no progress",
        "quiet": "perhaps stalled, not sure yet",
        "alone": "computes while the others wait: an evaluation, or a straggler",
        "starved": "waits for data: loader, disk or network storage",
        "throttled": "runs at a lower clock: heat, power or the power supply",
        "starting": "the job has not made its first step",
        "idle": "a process holds the GPU and runs nothing",
        "no_process": "nobody uses the GPU",
        "ended": "the process of the rank is gone",
        "lost": "the GPU does not answer the driver any more",
        "error": "the driver answers with an error",
        "unknown": "not known: never shown as 0",
    }
)
TERMS: tuple[tuple[str, Terms], ...] = (
    ("What a GPU or a rank does", tuple((DOING[state][0], what) for state, what in _STATES.items())),
    (
        "Line 1 and problems",
        (
            (f"{GLYPHS.fine} fine", "no incident and no finding"),
            ("HUNG", "a job makes no progress, and its ranks wait for each other"),
            ("STALLED?", "no progress for longer than its steps take; not sure yet"),
            ("FELL", "the activity of a job's GPUs has dropped"),
            ("CRIT WARN INFO", "how grave a finding is"),
            ("since", "when it began, not when mltop saw it"),
            (GLYPHS.arrow, "what to do"),
        ),
    ),
    (
        "Marks",
        (
            (GLYPHS.alarm, "the culprit of a hang"),
            (GLYPHS.finding, "a finding: Enter shows its evidence"),
            (GLYPHS.waits, "on the map: the GPU's rank waits"),
            (GLYPHS.lost, "a lost GPU"),
            (f"{GLYPHS.ramp[0]} to {GLYPHS.ramp[-1]}", "low to high; in a graph the newest value is on the right"),
            (GLYPHS.rest * 3, "in a graph: its limit, or every fourth line"),
            (GLYPHS.ellipsis, "something is cut off: Enter or y has all of it"),
        ),
    ),
    (
        "Columns",
        (
            ("SM", "share of time and SMs in which a warp was resident"),
            ("BUSY", "NVML's GPU-Util: a kernel was resident, and a waiting rank has 100%"),
            ("TC, DRAM", "tensor cores active, memory interface active"),
            ("GHZ", "SM clock"),
            ("TEMP, HBM", "temperature of the GPU, of its memory"),
            ("THROTTLED BY", "what holds the clock down, and for how much of ten minutes"),
            ("SINCE", "how long the rank has been in this state"),
            ("SWITCH/S, SYSCALL/S", "context switches and system calls: a process that is stuck has none"),
        ),
    ),
    (
        "Training jobs",
        (
            ("rank", "one process of a job"),
            ("collective", "an operation that all ranks of a group enter: all_reduce, all_gather, barrier"),
            ("hang", "a rank does not enter a collective, and the others wait for it"),
            ("culprit", "the rank that the others wait for"),
            ("straggler", "a rank that is slower than the others and so sets their pace"),
            ("dump", "the stacks of all ranks, read while they run on"),
            ("verdict", "what a dump says: who is the culprit, how sure that is"),
            ("incident", "one cause with all that belongs to it: findings, ranks, losses"),
            ("finding", "what a health rule reports of a node, GPU, port or rank"),
            ("probe", "a measurement that loads hardware; it asks first"),
            ("capture", "all that is known of a hang, in a directory"),
            ("rail", "the ports of the same place on all nodes"),
            ("Xid", "an error number of the NVIDIA driver in the kernel log"),
            ("PSU brake", "the power supply forces all GPUs of a node to a low clock"),
            ("headroom", "how far a temperature or a power is below its limit"),
        ),
    ),
)
