"""DCGM for GPUs without GPM: a real HTTP server or a real child that prints, and samples that are filled from it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mltop.probes.collect.dcgm import DcgmSource, Patience, without_filled
from mltop.probes.model import Gap, GpuSample, MigInstance
from mltop.probes.system import paths
from tests.fakes.dcgm_exporter import PROFILING, FakeDcgmi, FakeExporter, gpu_lines
from tests.ports import free_port
from tests.waiting import wait_until

FAST = Patience(grace_s=0.0, scrape_every_s=0.05, retry_first_s=0.1, retry_longest_s=0.2, timeout_s=0.5)
MAIN = "{sm_active,tensor_active,dram_active}"
ALL = {name: (index + 1) / 10 for index, name in enumerate(PROFILING)}
Start = Callable[..., DcgmSource]


@pytest.fixture(autouse=True)
def no_dcgmi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine has, unless a test puts a tool there."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # must not be used


@pytest.fixture
def start() -> Iterator[Start]:
    sources: list[DcgmSource] = []

    def make(url: str | None, patience: Patience = FAST) -> DcgmSource:
        sources.append(DcgmSource(url, patience))
        return sources[-1]

    yield make
    for source in sources:
        source.close()


@pytest.fixture
def exporter() -> Iterator[FakeExporter]:
    with FakeExporter() as running:
        yield running


@pytest.fixture
def free_url() -> str:
    return f"http://127.0.0.1:{free_port()}/metrics"


def a100s(count: int = 2) -> list[GpuSample]:
    return [GpuSample(index, uuid=f"GPU-{index}", pci_bus_id=f"00000000:{index:02X}:00.0") for index in range(count)]


Filled = tuple[list[GpuSample], list[Gap]]


def fill_until(
    source: DcgmSource, make: Callable[[], list[GpuSample]], wanted: Callable[[Filled], object], what: str
) -> Filled:
    """Fills samples as the agent does until an outcome is as wanted."""

    def step() -> Filled | None:
        gpus = make()
        outcome = gpus, source.fill(gpus, time.time())
        return outcome if wanted(outcome) else None

    return wait_until(step, what=what)


def is_filled(outcome: Filled) -> bool:
    return all(gpu.activity_source == "dcgm" for gpu in outcome[0])


def says(text: str) -> Callable[[Filled], bool]:
    return lambda outcome: any(text in gap.why for gap in outcome[1])


def test_every_field_arrives(start: Start, exporter: FakeExporter) -> None:
    exporter.text += gpu_lines(ALL, gpu="0", UUID="GPU-0") + gpu_lines(dict.fromkeys(ALL, 0.5), gpu="1", UUID="GPU-1")
    gpus, gaps = fill_until(start(exporter.url), a100s, is_filled, "values")
    assert {name: getattr(gpus[0], name) for name in ALL} == ALL
    assert {getattr(gpus[1], name) for name in ALL} == {0.5}
    assert gaps == []


def test_new_values_replace_old_ones(start: Start, exporter: FakeExporter) -> None:
    exporter.text = gpu_lines({"sm_active": 0.1}, gpu="0", UUID="GPU-0")
    source = start(exporter.url)
    fill_until(source, lambda: a100s(1), lambda outcome: outcome[0][0].sm_active == 0.1, "the first value")
    exporter.text = gpu_lines({"sm_active": 0.9}, gpu="0", UUID="GPU-0")
    fill_until(source, lambda: a100s(1), lambda outcome: outcome[0][0].sm_active == 0.9, "the next value")


def test_the_first_fill_does_not_wait_and_says_so(start: Start, exporter: FakeExporter) -> None:
    exporter.delay_s = 0.3
    source = start(exporter.url)
    gaps = source.fill(a100s(), time.time())
    assert [(gap.what, gap.kind) for gap in gaps] == [(f"gpu.*.{MAIN}", "starting")]


def test_nothing_is_asked_while_no_gpu_lacks_activity(start: Start, exporter: FakeExporter) -> None:
    source = start(exporter.url)
    gpus = a100s()
    gpus[0].activity_source = "gpm"
    gpus[1].state = "lost"
    assert source.fill(gpus, time.time()) == []
    assert source.fill([], time.time()) == []
    assert exporter.requests == 0
    assert source._thread is None


def test_gpm_has_time_for_its_second_sample(start: Start, tmp_path: Path, exporter: FakeExporter) -> None:
    """Until then nothing is said to be missing, and nothing is asked that a profiler would notice."""
    tool = FakeDcgmi(tmp_path / "bin", KNOWN, ROWS)
    exporter.status = 404
    source = start(exporter.url, Patience(grace_s=0.8, retry_first_s=0.1))
    assert source.fill(a100s(), time.time()) == []
    wait_until(lambda: exporter.requests, what="the exporter to be asked")
    assert source.fill(a100s(), time.time()) == []
    assert tool.calls() == []
    fill_until(source, a100s, is_filled, "dcgmi's values after the grace")


def test_gpus_that_got_activity_of_their_own_are_not_asked_about(start: Start, exporter: FakeExporter) -> None:
    exporter.text = gpu_lines(ALL, gpu="0", UUID="GPU-0")
    source = start(exporter.url)
    fill_until(source, lambda: a100s(1), is_filled, "values")
    (gpu,) = a100s(1)
    gpu.activity_source = "gpm"
    source.fill([gpu], time.time())
    wait_until(lambda: not source._wanted.is_set(), what="the thread to rest")
    asked = exporter.requests
    assert source.fill([gpu], time.time()) == []
    time.sleep(3 * FAST.scrape_every_s)
    assert exporter.requests == asked
    fill_until(source, lambda: a100s(1), lambda _: exporter.requests > asked, "asking again")


def test_an_exporters_values_need_no_grace(start: Start, exporter: FakeExporter) -> None:
    exporter.text = gpu_lines(ALL, gpu="0", UUID="GPU-0")
    source = start(exporter.url, Patience(grace_s=60.0))
    fill_until(source, lambda: a100s(1), is_filled, "values")


def test_a_gpu_with_gpm_beside_one_without_keeps_its_own(start: Start, exporter: FakeExporter) -> None:
    exporter.text = "".join(gpu_lines(ALL, gpu=str(index), UUID=f"GPU-{index}") for index in range(2))

    def mixed() -> list[GpuSample]:
        gpus = a100s()
        gpus[0].activity_source, gpus[0].sm_active = "gpm", 0.99
        return gpus

    gpus, _ = fill_until(start(exporter.url), mixed, lambda outcome: outcome[0][1].activity_source, "GPU 1")
    assert (gpus[0].activity_source, gpus[0].sm_active, gpus[0].tensor_active) == ("gpm", 0.99, None)
    assert gpus[1].sm_active == ALL["sm_active"]


def test_nothing_listens(start: Start, free_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "SYSROOT", str(tmp_path))  # no container, wherever this runs
    _, gaps = fill_until(start(free_url), a100s, says("nothing listens"), "the reason")
    address = free_url.split("/")[2]
    assert [gap.what for gap in gaps] == [f"gpu.*.{MAIN}"]
    assert gaps[0].why == f"needs GPM (Hopper) or a running DCGM: nothing listens on {address}"
    assert "nvidia-dcgm" in gaps[0].fix
    assert "DCGM_FI_PROF_SM_ACTIVE" in gaps[0].fix


def test_an_exporter_that_starts_later_is_found(start: Start) -> None:
    with FakeExporter() as first:
        url, address = first.url, first.address
    source = start(url)
    fill_until(source, a100s, says("nothing listens"), "the reason")
    with FakeExporter(gpu_lines(ALL, gpu="0", UUID="GPU-0"), int(address.rpartition(":")[2])):
        fill_until(source, lambda: a100s(1), is_filled, "values")


def test_the_exporters_default_metrics_lack_sm_active(start: Start, exporter: FakeExporter) -> None:
    exporter.text += gpu_lines({"tensor_active": 0.4, "dram_active": 0.2}, gpu="0", UUID="GPU-0")
    gpus, gaps = fill_until(start(exporter.url), lambda: a100s(1), is_filled, "values")
    assert (gpus[0].sm_active, gpus[0].tensor_active, gpus[0].dram_active) == (None, 0.4, 0.2)
    assert [(gap.what, gap.kind) for gap in gaps] == [("gpu.*.sm_active", "unknown")]
    assert "does not export it" in gaps[0].why
    assert "uncomment DCGM_FI_PROF_SM_ACTIVE" in gaps[0].fix


def test_an_exporter_without_profiling_has_a_sentence_of_its_own(start: Start, exporter: FakeExporter) -> None:
    _, gaps = fill_until(start(exporter.url), a100s, says("exports no activity"), "the reason")
    assert "nothing listens" not in gaps[0].why
    assert "uncomment" in gaps[0].fix


@pytest.mark.parametrize(
    ("status", "text", "why"),
    [
        (404, "not here", "answers, but not as dcgm-exporter (HTTP 404)"),
        (200, "<html>Jenkins</html>", "answers, but not as dcgm-exporter"),
        (200, "x" * (9 << 20), "cannot be read: sent more than 8 MiB"),
    ],
)
def test_another_program_on_the_port(start: Start, exporter: FakeExporter, status: int, text: str, why: str) -> None:
    exporter.status, exporter.text = status, text
    fill_until(start(exporter.url), a100s, says(why), "the reason")


def test_whoever_has_the_port_sends_us_nowhere_else(start: Start, exporter: FakeExporter) -> None:
    with FakeExporter() as elsewhere:
        exporter.status, exporter.location = 302, elsewhere.url
        fill_until(start(exporter.url), a100s, says("answers, but not as dcgm-exporter (HTTP 302)"), "the reason")
        assert elsewhere.requests == 0


def test_a_server_that_does_not_answer_in_time(start: Start, exporter: FakeExporter) -> None:
    exporter.delay_s = 2.0
    fill_until(start(exporter.url), a100s, says("does not answer within 0.5 s"), "the reason")


def test_a_server_that_breaks_off(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/metrics"
        source = start(url)
        source.fill(a100s(), time.time())

        def hang_up(outcome: Filled) -> bool:
            server.settimeout(0.05)
            with contextlib.suppress(TimeoutError):
                server.accept()[0].close()
            return says("cannot be read")(outcome)

        fill_until(source, a100s, hang_up, "the reason")


@pytest.mark.parametrize("url", ["nonsense", "http://127.0.0.1:999999/metrics", "http://[::1/metrics"])
def test_an_address_that_is_none(start: Start, url: str) -> None:
    fill_until(start(url), a100s, says("is no address of an exporter"), "the reason")


def test_the_variable_names_the_exporter(start: Start, exporter: FakeExporter, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter.text = gpu_lines(ALL, gpu="0", UUID="GPU-0")
    monkeypatch.setenv("MLTOP_DCGM_EXPORTER", exporter.url)
    fill_until(start(None), lambda: a100s(1), is_filled, "values")


def test_an_empty_variable_switches_dcgm_off(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLTOP_DCGM_EXPORTER", "")
    source = start(None)
    gaps = source.fill(a100s(), time.time())
    assert [gap.what for gap in gaps] == [f"gpu.*.{MAIN}"]
    assert gaps[0].fix == "unset MLTOP_DCGM_EXPORTER"
    assert source._thread is None


def test_blank_values_are_unknown_with_a_reason(start: Start, exporter: FakeExporter) -> None:
    values: dict[str, object] = {"sm_active": 140737488355328.0, "tensor_active": 0.3, "dram_active": 42}
    exporter.text += gpu_lines(values, gpu="0", UUID="GPU-0")
    gpus, gaps = fill_until(start(exporter.url), lambda: a100s(1), is_filled, "values")
    assert (gpus[0].sm_active, gpus[0].tensor_active, gpus[0].dram_active) == (None, 0.3, None)
    whys = {gap.what: gap.why for gap in gaps}
    assert "has no value of it" in whys["gpu.*.sm_active"]
    assert "says 42, which is not a value" in whys["gpu.*.dram_active"]


def test_a_gpu_that_the_exporter_does_not_know(start: Start, exporter: FakeExporter) -> None:
    exporter.text += gpu_lines(ALL, gpu="0", UUID="GPU-0")
    gpus, gaps = fill_until(
        start(exporter.url), a100s, lambda outcome: outcome[0][0].activity_source, "values of GPU 0"
    )
    assert gpus[1].activity_source is None
    assert [(gap.what, "says nothing of this GPU" in gap.why) for gap in gaps] == [(f"gpu.1.{MAIN}", True)]


def test_old_values_are_not_shown(start: Start, exporter: FakeExporter) -> None:
    exporter.text += gpu_lines(ALL, gpu="0", UUID="GPU-0")
    patience = Patience(0.0, 0.05, 0.1, 0.2, 0.5, stale_after_s=0.6)
    source = start(exporter.url, patience)
    fill_until(source, lambda: a100s(1), is_filled, "values")
    exporter.status = 500
    seen: list[bool] = []

    def gone(outcome: Filled) -> bool:
        seen.append(is_filled(outcome))
        return says("HTTP 500")(outcome) or says("s old")(outcome)

    gpus, _ = fill_until(source, lambda: a100s(1), gone, "the values to be withdrawn")
    assert gpus[0].sm_active is None
    assert any(seen), "they are shown as long as they are not too old"


def test_instances_get_their_own_values_and_the_gpu_none(start: Start, exporter: FakeExporter) -> None:
    exporter.text += gpu_lines({**ALL, "sm_active": 0.9}, gpu="0", UUID="GPU-0", GPU_I_PROFILE="3g.20gb", GPU_I_ID="2")

    def in_mig_mode() -> list[GpuSample]:
        (gpu,) = a100s(1)
        gpu.mig_instances = [MigInstance(0, gpu_instance=1), MigInstance(1, gpu_instance=2)]
        return [gpu]

    (gpu,), gaps = fill_until(
        start(exporter.url), in_mig_mode, lambda outcome: outcome[0][0].mig_instances[1].sm_active, "the instance"
    )
    assert gpu.activity_source is None
    assert gpu.sm_active is None
    assert gpu.mig_instances[0].sm_active is None
    assert gpu.mig_instances[1].sm_active == 0.9
    assert gpu.mig_instances[1].dram_active == ALL["dram_active"]
    assert [(gap.what, gap.kind) for gap in gaps] == [(f"gpu.*.{MAIN}", "unsupported")]


ROWS = "GPU 0   0.123   0.100   0.500   0.250   N/A   0.010   0.020\nGPU 1   0.2 0.2 0.2 0.2 0.2 0.2 0.2\n"
KNOWN = [("GPU-1", "00000000:01:00.0"), ("GPU-0", "00000000:00:00.0")]  # DCGM counts in an order of its own


def test_dcgmi_where_no_exporter_listens(start: Start, tmp_path: Path, free_url: str) -> None:
    tool = FakeDcgmi(tmp_path / "bin", KNOWN, ROWS)
    source = start(free_url)
    gpus, gaps = fill_until(source, a100s, is_filled, "values")
    assert (gpus[1].sm_active, gpus[1].tensor_active, gpus[1].fp64_active) == (0.123, 0.5, None)
    assert gpus[0].sm_active == 0.2
    assert gaps == []
    tool.rows.write_text(ROWS.replace("0.123", "0.9"))
    fill_until(source, a100s, lambda outcome: outcome[0][1].sm_active == 0.9, "the next values")
    assert len([call for call in tool.calls() if call.startswith("dmon")]) == 1, "one long-lived child"
    pid = tool.pid()
    source.close()
    assert not Path(f"/proc/{pid}").exists()


def test_dcgmi_that_ends_is_started_again(start: Start, tmp_path: Path, free_url: str) -> None:
    tool = FakeDcgmi(tmp_path / "bin", KNOWN, ROWS)
    source = start(free_url)
    fill_until(source, a100s, is_filled, "values")
    first = tool.pid()
    os.kill(first, signal.SIGKILL)
    fill_until(source, a100s, lambda _: tool.pid() != first, "another child")


@pytest.mark.parametrize(
    ("fails", "why"),
    [
        ("Error: unable to establish a connection to the specified host", "and dcgmi reaches no nv-hostengine"),
        ("", "and dcgmi dmon ended: Error setting watches"),
    ],
)
def test_dcgmi_without_values(start: Start, tmp_path: Path, free_url: str, fails: str, why: str) -> None:
    tool = FakeDcgmi(tmp_path / "bin", KNOWN, ROWS, fails)
    if not fails:
        text = (tmp_path / "bin" / "dcgmi").read_text()
        (tmp_path / "bin" / "dcgmi").write_text(
            text.replace("while True:", "print('Error setting watches. Result: -37')\nsys.exit(1)\nwhile True:")
        )
    _, gaps = fill_until(start(free_url), a100s, says(why), "the reason")
    assert "nothing listens on 127.0.0.1" in gaps[0].why
    assert tool.calls()[0].startswith("discovery -l")


def test_a_source_that_is_not_wanted_any_more_ends_dcgmi(start: Start, tmp_path: Path, free_url: str) -> None:
    tool = FakeDcgmi(tmp_path / "bin", KNOWN, ROWS)
    source = start(free_url, Patience(0.0, 0.05, 0.1, 0.2, 0.5, unwanted_after_s=0.7))
    fill_until(source, a100s, is_filled, "values")
    pid = tool.pid()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), what="dcgmi to end")
    fill_until(source, a100s, lambda _: tool.pid() != pid, "dcgmi to be started when it is wanted again")


@pytest.mark.parametrize(
    ("what", "filled", "left"),
    [
        ("gpu.*.{sm_active,tensor_active}", {"sm_active", "tensor_active"}, None),
        ("gpu.*.{sm_active,tensor_active,dram_active}", {"tensor_active"}, "gpu.*.{sm_active,dram_active}"),
        ("gpu.*.{sm_active,tensor_active}", {"tensor_active"}, "gpu.*.sm_active"),
        ("gpu.1.sm_active", {"sm_active"}, None),
        ("gpu.1.sm_active", set(), "gpu.1.sm_active"),
        ("gpu.1.{sm_active,power_w}", {"sm_active"}, "gpu.1.{sm_active,power_w}"),
        ("gpu.1.ecc", {"sm_active"}, "gpu.1.ecc"),
        ("kernel_log", {"sm_active"}, "kernel_log"),
    ],
)
def test_gaps_of_nvml_that_dcgm_closed(what: str, filled: set[str], left: str | None) -> None:
    gpus = a100s()
    for gpu in gpus:
        for name in filled:
            setattr(gpu, name, 0.5)
    gap = Gap(what, "why", "fix", "unsupported")
    kept = without_filled([gap], gpus)
    assert kept == ([] if left is None else [Gap(left, "why", "fix", "unsupported")])


def test_gaps_of_instances_that_dcgm_closed() -> None:
    (gpu,) = a100s(1)
    gpu.mig_instances = [MigInstance(0, sm_active=0.5, dram_active=0.1), MigInstance(1, dram_active=0.1)]
    gap = Gap("gpu.0.mig_instances.*.{sm_active,dram_active}", "why")
    assert [kept.what for kept in without_filled([gap], [gpu])] == ["gpu.0.mig_instances.*.sm_active"]
    gpu.mig_instances[1].sm_active = 0.2
    assert without_filled([gap], [gpu]) == []
