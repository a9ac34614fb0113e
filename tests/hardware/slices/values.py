"""Every field of a GpuSample that somebody else can tell, against them. Moving values are asked before and after."""

from __future__ import annotations

from collections.abc import Iterator

from tests.hardware.checks import Check, compare
from tests.hardware.context import Context
from tests.hardware.ours import Mltop
from tests.hardware.sources import Query

CHECKS: tuple[str, ...] = ("name",)


def run(context: Context) -> Iterator[Check]:
    query = Query(["name"])
    answer = query.ask()
    with Mltop() as mltop:
        for gpu in mltop.poll():
            told = query.told(answer, gpu.uuid or "", "name")
            yield compare("name", gpu.name, told, gap=mltop.gap(gpu.index, "name"), gpu=gpu.index, source="nvidia-smi")
