"""The fake NVML's GPM samples and MIG devices, through pynvml in a process of its own."""

from __future__ import annotations

import ctypes
import math
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from tests.fakes.nvml.build import SOURCES
from tests.fakes.nvml.child import Child
from tests.fakes.nvml.counts import read_counts
from tests.fakes.nvml.scenario import FakeNvml

HELPERS = r"""
import time
samples = {}
def alloc(name): samples[name] = nvmlGpmSampleAlloc()
def free(name): nvmlGpmSampleFree(samples[name])
def take(name, index=0): nvmlGpmSampleGet(handle(index), samples[name]) and None
def take_mig(name, instance, index=0): nvmlGpmMigSampleGet(handle(index), instance, samples[name]) and None
def metrics(older, newer, *ids, version=1):
    get = c_nvmlGpmMetricsGet_t(version=version, numMetrics=len(ids), sample1=samples[older], sample2=samples[newer])
    for place, wanted in enumerate(ids): get.metrics[place].metricId = wanted
    nvmlGpmMetricsGet(get)
    return [[m.metricId, m.nvmlReturn, repr(m.value)] for m in get.metrics[:len(ids)]]
def support(version=1, index=0):
    found = c_nvmlGpmSupport_t(version=version)
    pynvml._nvmlCheckReturn(pynvml.nvmlLib.nvmlGpmQueryDeviceSupport(handle(index), byref(found)))
    return found.isSupportedDevice
def mig(place, index=0): return nvmlDeviceGetMigDeviceHandleByIndex(handle(index), place)
def memory(handle):
    found = nvmlDeviceGetMemoryInfo(handle)
    return [found.used, found.total]
"""


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    return FakeNvml(tmp_path / "fake", count=2)


@pytest.fixture
def child(fake: FakeNvml) -> Iterator[Child]:
    with Child(fake) as running:
        running(f"exec({HELPERS!r})")
        for name in "abc":
            running(f"alloc({name!r})")
        yield running


def value(child: Child, metric: int) -> float:
    """Of a metric between the samples a and b."""
    ((found, code, text),) = child(f"metrics('a', 'b', {metric})")
    assert (found, code) == (metric, 0)
    return float(text)


def sample(child: Child, name: str) -> None:
    """A sample as far apart from others as NVML wants them."""
    time.sleep(0.11)
    child(f"take({name!r})")


STRUCTURES = {
    "nvmlGpmMetricInfo_t": pynvml.c_metricInfo_t,
    "nvmlGpmMetric_t": pynvml.c_nvmlGpmMetric_t,
    "nvmlGpmSupport_t": pynvml.c_nvmlGpmSupport_t,
    "nvmlDeviceAttributes_t": pynvml.c_nvmlDeviceAttributes,
    "nvmlGpmMetricsGet_t": pynvml.c_nvmlGpmMetricsGet_t,
}


def test_structures_are_laid_out_as_in_pynvml(tmp_path: Path) -> None:
    lines = ["#include <stddef.h>", f'#include "{SOURCES / "abi_gpm.h"}"']
    for name, structure in STRUCTURES.items():
        for member, _ in structure._fields_:
            lines.append(
                f'_Static_assert(offsetof({name}, {member}) == {getattr(structure, member).offset}, "{name}");'
            )
        if name != "nvmlGpmMetricsGet_t":  # as long as the header is new
            lines.append(f'_Static_assert(sizeof({name}) == {ctypes.sizeof(structure)}, "{name}");')
    source = tmp_path / "layout.c"
    source.write_text("\n".join(lines))
    done = subprocess.run(
        ["cc", "-std=gnu11", "-fsyntax-only", str(source)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_support(fake: FakeNvml, child: Child) -> None:
    assert child("support()") == 1
    fake.set("gpu.0.gpm_supported", False)
    fake.write()
    assert child("support()") == 0
    assert child("support(index=1)") == 1
    assert child.error("take('a')") == pynvml.NVML_ERROR_NOT_SUPPORTED
    assert child.error("support(version=2)") == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
    fake.set("gpu.0.gpm_supported", "unsupported")
    fake.write()
    assert child.error("support()") == pynvml.NVML_ERROR_NOT_SUPPORTED


METRICS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 20, 21, 60, 61)


def test_metrics_are_what_the_scenario_says(fake: FakeNvml, child: Child) -> None:
    for metric in METRICS[1:]:
        fake.set(f"gpu.0.gpm.{metric}", f"{metric}.5")
    fake.write()
    sample(child, "a")
    sample(child, "b")
    found = child(f"metrics('a', 'b', {', '.join(map(str, METRICS))})")
    assert [metric for metric, code, _ in found if code == 0] == list(METRICS)
    assert [float(text) for _, _, text in found] == pytest.approx([0, *(metric + 0.5 for metric in METRICS[1:])])


def test_a_metric_is_the_average_between_its_samples(fake: FakeNvml, child: Child) -> None:
    sample(child, "a")
    fake.set("gpu.0.gpm.2", "100")
    fake.write()
    sample(child, "c")
    fake.set("gpu.0.gpm.2", "0")
    fake.write()
    sample(child, "b")
    assert 5 < value(child, 2) < 95
    assert float(child("metrics('a', 'c', 2)")[0][2]) == pytest.approx(100)
    assert float(child("metrics('c', 'b', 2)")[0][2]) == pytest.approx(0)


def test_errors_and_nan_of_single_metrics(fake: FakeNvml, child: Child) -> None:
    fake.set("gpu.*.gpm.2", "nan")
    fake.set("gpu.0.gpm.5", "error 3")
    fake.set("gpu.0.gpm.10", "unsupported")
    fake.set("gpu.0.gpm.3", "20")
    fake.write()
    sample(child, "a")
    sample(child, "b")
    found = child("metrics('a', 'b', 2, 5, 10, 3, 999)")
    assert math.isnan(float(found[0][2]))
    assert [code for _, code, _ in found] == [0, 3, 3, 0, 3]
    assert float(found[3][2]) == pytest.approx(20)


def test_calls_can_be_refused_by_gpu(fake: FakeNvml, child: Child) -> None:
    sample(child, "a")
    sample(child, "b")
    fake.set("gpu.0.call.nvmlGpmMetricsGet", "error 4")
    fake.set("gpu.1.call.nvmlGpmSampleGet", "error 15")
    fake.write()
    assert child.error("metrics('a', 'b', 2)") == pynvml.NVML_ERROR_NO_PERMISSION
    assert child.error("take('c', 1)") == pynvml.NVML_ERROR_GPU_IS_LOST
    assert child.error("metrics('a', 'b', 2, version=2)") == pynvml.NVML_ERROR_NO_PERMISSION
    fake.unset("gpu.0.call.nvmlGpmMetricsGet")
    fake.write()
    assert child.error("metrics('a', 'b', 2, version=2)") == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH


@pytest.mark.parametrize(
    ("before", "misuse", "words"),
    [
        ("free('a')", "take('a')", "a sample that was freed"),
        ("free('a')", "free('a')", "a sample that was freed"),
        ("take('a')", "metrics('a', 'b', 2)", "a sample that was never filled"),
        ("(take('a'), take('b', 1)) and None", "metrics('a', 'b', 2)", "samples of two GPUs"),
        ("(take('a'), take('b')) and None", "metrics('b', 'a', 2)", "is not the older one"),
        ("take('a')", "metrics('a', 'a', 2)", "is not the older one"),
        ("None", "nvmlGpmSampleFree(c_nvmlGpmSample_t())", "which is no sample"),
    ],
)
def test_misused_samples_end_the_process(child: Child, before: str, misuse: str, words: str) -> None:
    child(before)
    with pytest.raises(AssertionError, match=words):
        child(misuse)


def test_samples_too_close_and_from_two_threads_are_counted(fake: FakeNvml, child: Child) -> None:
    sample(child, "a")
    sample(child, "b")
    assert not [name for name in read_counts(fake.counts_path) if name.startswith("misuse")]
    child("take('a')")
    assert read_counts(fake.counts_path)["misuse.nvmlGpmSampleGet.within_100_ms"] == 1
    time.sleep(0.11)
    child("[(t.start(), t.join()) for t in [__import__('threading').Thread(target=take, args=('b',))]] and None")
    assert read_counts(fake.counts_path)["misuse.nvmlGpmSampleGet.from_two_threads"] == 1
    assert read_counts(fake.counts_path)["misuse.nvmlGpmSampleGet.within_100_ms"] == 1


def test_a_metric_that_is_no_number_is_refused(fake: FakeNvml, child: Child) -> None:
    fake.set("gpu.0.gpm.2", "much")
    fake.write()
    with pytest.raises(AssertionError, match='a GPM metric is a number, "nan", "error N" or "unsupported", not "much"'):
        child("take('a')")


GIB = 2**30


@pytest.fixture
def in_mig_mode(fake: FakeNvml) -> FakeNvml:
    fake.set("gpu.0.mig_enabled", True)
    fake.set("gpu.0.mig.0", f"3g.40gb gi=2 used={GIB} gpm.2=75 gpm.5=nan")
    fake.set("gpu.0.mig.2", "1c.2g.20gb ci=1 uuid=MIG-my-own total=1000 gpm.2=error_4")
    fake.write()
    return fake


def test_mig_devices(in_mig_mode: FakeNvml, child: Child) -> None:
    assert child("nvmlDeviceGetMaxMigDeviceCount(handle(0))") == 7
    assert child("nvmlDeviceGetName(mig(0))") == "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
    assert child("nvmlDeviceGetName(mig(2))") == "NVIDIA H100 80GB HBM3 MIG 1c.2g.20gb"
    assert child("[nvmlDeviceGetUUID(mig(i)) for i in (0, 2)]") == [
        "MIG-5a4e0001-0000-4000-8000-000000000000",
        "MIG-my-own",
    ]
    assert child("[memory(mig(i)) for i in (0, 2)]") == [[GIB, 40 * GIB], [0, 1000]]
    assert child("[nvmlDeviceGetGpuInstanceId(mig(i)) for i in (0, 2)]") == [2, 9]
    assert child("[nvmlDeviceGetComputeInstanceId(mig(i)) for i in (0, 2)]") == [0, 1]
    assert child("nvmlDeviceIsMigDeviceHandle(mig(0)).value") == 1
    assert child("nvmlDeviceIsMigDeviceHandle(handle(0)).value") == 0
    assert child("nvmlDeviceGetUUID(nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig(2)))").startswith("GPU-")
    attributes = child("members(nvmlDeviceGetAttributes_v2(mig(0)))")
    assert (attributes["gpuInstanceSliceCount"], attributes["memorySizeMB"]) == (3, 40 * 1024)
    assert child.error("mig(1)") == pynvml.NVML_ERROR_NOT_FOUND
    assert child.error("mig(0, 1)") == pynvml.NVML_ERROR_NOT_FOUND
    assert child.error("nvmlDeviceGetUtilizationRates(mig(0))") == pynvml.NVML_ERROR_NOT_SUPPORTED
    assert child.error("nvmlDeviceGetGpuInstanceId(handle(0))") == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_a_mig_device_that_is_gone_is_an_invalid_argument(in_mig_mode: FakeNvml, child: Child) -> None:
    child("samples.update(kept=mig(0))")
    in_mig_mode.unset("gpu.0.mig.0")
    in_mig_mode.write()
    for call in ("nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetGpuInstanceId"):
        assert child.error(f"{call}(samples['kept'])") == pynvml.NVML_ERROR_INVALID_ARGUMENT
    assert child.error("take_mig('a', 2)") == pynvml.NVML_ERROR_INVALID_ARGUMENT


def test_what_is_said_of_the_gpu_holds_for_its_mig_devices(in_mig_mode: FakeNvml, child: Child) -> None:
    in_mig_mode.set("gpu.0.call.nvmlDeviceGetMemoryInfo", "error 15")
    child("samples.update(kept=mig(0))")
    in_mig_mode.write()
    assert child.error("nvmlDeviceGetMemoryInfo(samples['kept'])") == pynvml.NVML_ERROR_GPU_IS_LOST


def test_gpm_of_a_gpu_instance(in_mig_mode: FakeNvml, child: Child) -> None:
    child("take_mig('a', 2)")
    time.sleep(0.11)
    child("take_mig('b', 2)")
    found = child("metrics('a', 'b', 2, 5, 10)")
    assert float(found[0][2]) == pytest.approx(75)
    assert [text for _, _, text in found[1:]] == ["nan", "0.0"]
    child("take_mig('a', 9)")
    time.sleep(0.11)
    child("take_mig('b', 9)")
    assert child("metrics('a', 'b', 2)")[0][1] == 4
    assert child.error("take_mig('c', 3)") == pynvml.NVML_ERROR_INVALID_ARGUMENT
    assert child.error("take_mig('c', 2, 1)") == pynvml.NVML_ERROR_INVALID_ARGUMENT
    with pytest.raises(AssertionError, match="samples of two GPUs"):
        child("(take('c'), metrics('b', 'c', 2))")


def test_a_mistyped_mig_device_is_refused(fake: FakeNvml, child: Child) -> None:
    fake.set("gpu.0.mig_enabled", True)
    fake.set("gpu.0.mig.0", "1g.10gb memory=5")
    fake.write()
    with pytest.raises(AssertionError, match="a MIG device is PROFILE"):
        child("memory(mig(0))")
