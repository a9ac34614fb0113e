"""A scenario from what a real NVML answered (answers.json of a run of `bash tests/gpu`): the fake answers the same.

    fake = FakeNvml(tmp_path)
    load(json.loads(Path("tests/fixtures/gpu/H100-…/answers.json").read_text()), fake)
    fake.write()

What the GPU or its driver does not support is "unsupported", functions that it lacks are "missing", any other error is
that of the whole function. What nobody asked is unsupported.
"""

from __future__ import annotations

import uuid
from typing import Any

from tests.fakes.nvml.scenario import FakeNvml
from tests.hardware.answers import CALLS, LINK_FIELDS

NOT_SUPPORTED, FUNCTION_NOT_FOUND = 3, 13  # nvmlReturn_t
REMOTE_SWITCH = 2  # nvmlIntNvLinkDeviceType_t
FABRIC = {
    "fabric_state": "state",
    "fabric_status": "status",
    "fabric_clique": "cliqueId",
    "fabric_health_mask": "healthMask",
    "fabric_health_summary": "healthSummary",
    "fabric_version": "version",
}


def load(answers: dict[str, Any], fake: FakeNvml) -> None:
    """Nothing is written yet."""
    for name in ("driver", "nvml", "cuda"):
        fake.set(name, answers[name])
    fake.set("count", len(answers["gpus"]))
    for index, gpu in enumerate(answers["gpus"]):
        _Gpu(fake, index).load(gpu)


class _Gpu:
    def __init__(self, fake: FakeNvml, index: int) -> None:
        self._fake, self._index = fake, index

    def load(self, gpu: dict[str, Any]) -> None:
        for key, (function, _, _) in CALLS.items():
            self._answer(key, function, gpu["calls"].get(key, {}))
        self._set("power_average_mw", gpu["calls"]["power_mw"].get("value", "unsupported"))
        self._fields(gpu["fields"])
        self._memory(gpu["memory_v2"], gpu["memory"])
        self._sram(gpu["sram"])
        self._fabric(gpu["fabric"])
        self._links(gpu["fields"].get("91", {}).get("value", 0), gpu["links"])
        self._processes(gpu["processes"])

    def _set(self, key: str, value: Any) -> None:
        self._fake.set(f"gpu.{self._index}.{key}", value)

    def _answer(self, key: str, function: str, answer: dict[str, Any]) -> None:
        code = answer.get("error", NOT_SUPPORTED)
        if "value" in answer:
            self._set(key, answer["value"])
        elif code == FUNCTION_NOT_FOUND:
            self._fake.set(f"call.{function}", "missing")
        elif code == NOT_SUPPORTED:
            self._set(key, "unsupported")
        else:
            self._set(f"call.{function}", f"error {code}")

    def _fields(self, fields: dict[str, dict[str, Any]]) -> None:
        for number, answer in fields.items():
            code = answer.get("error", NOT_SUPPORTED)
            refusal = "unsupported" if code == NOT_SUPPORTED else f"error {code}"
            self._set(f"field.{number}", answer.get("value", refusal))

    def _memory(self, second: dict[str, Any], first: dict[str, Any]) -> None:
        """Version 1 counts as used what version 2 calls reserved."""
        if "value" not in second:
            self._fake.set("call.nvmlDeviceGetMemoryInfo_v2", "missing")
        told = second.get("value") or {**first.get("value", {}), "reserved": 0}
        for name in ("total", "used", "reserved"):
            self._set(f"memory_{name}_bytes", told.get(name, "unsupported"))

    def _sram(self, sram: dict[str, Any]) -> None:
        told = sram.get("value")
        if told is None and sram.get("error") == FUNCTION_NOT_FOUND:
            self._fake.set("call.nvmlDeviceGetSramEccErrorStatus", "missing")
        if told is not None:
            for since in ("aggregate", "volatile"):
                count = told[f"{since}UncParity"] + told[f"{since}UncSecDed"]
                self._set(f"ecc_sram_uncorrected_{since}", count)
        self._set("ecc_sram_threshold_exceeded", "unsupported" if told is None else told["bThresholdExceeded"])

    def _fabric(self, fabric: dict[str, Any]) -> None:
        told = fabric.get("value")
        if told is None and fabric.get("error") == FUNCTION_NOT_FOUND:
            self._fake.set("call.nvmlDeviceGetGpuFabricInfo", "missing")
            self._fake.set("call.nvmlDeviceGetGpuFabricInfoV", "missing")
        if told is None:
            self._set("fabric_state", "unsupported")
            return
        for key, name in FABRIC.items():
            self._set(key, told.get(name, 0))
        if told["version"] == 1:  # the call without versions
            self._fake.set("call.nvmlDeviceGetGpuFabricInfoV", "missing")
        self._set("fabric_cluster_uuid", str(uuid.UUID(told["clusterUuid"])))

    def _links(self, count: int, links: dict[str, Any]) -> None:
        """What only a call told keeps its field refused."""
        self._set("nvlink_links", count)
        if not count:
            return
        for key, number in LINK_FIELDS.items():
            by_field, by_call = links[key], links["by_call"].get(key, [{}] * count)
            if not any("value" in answer for answer in by_field):
                self._fields({str(number): by_field[0]})
            told = [answer.get("value", call.get("value")) for answer, call in zip(by_field, by_call, strict=True)]
            self._set(key, ", ".join("unsupported" if value is None else str(value) for value in told))
        remotes = [
            "switch" if kind.get("value") == REMOTE_SWITCH else place.get("value", "unsupported")
            for kind, place in zip(links["remote_type"], links["remote_bus_id"], strict=True)
        ]
        self._set("nvlink_remote", ", ".join(remotes))

    def _processes(self, processes: dict[str, dict[str, Any]]) -> None:
        self._set(
            "processes",
            [(pid, used, kind) for kind, answer in processes.items() for pid, used in answer.get("value", [])],
        )
