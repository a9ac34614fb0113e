"""`mltop probe all-reduce` on this machine: real gloo ranks, a slow one, a killed one, a deadline, Ctrl-C."""

from __future__ import annotations

import json
import platform
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.probing import MLTOP, Probed, environment, probe, probe_processes, wait_gone
from tests.waiting import wait_until

SMALL = ("all-reduce", "--via", "local", "--sizes", "64K,1M")
BUSBW = {2: 1.0, 4: 1.5}  # 2(n-1)/n


@pytest.mark.parametrize("ranks", BUSBW)
def test_bandwidth_time_and_correctness_of_every_size(tmp_path: Path, ranks: int) -> None:
    done = probe(tmp_path, *SMALL, "--ranks", str(ranks))
    assert done.report["failures"] == [], done.report["failures"]
    results = done.report["results"]
    assert [result["size_bytes"] for result in results] == [64 << 10, 1 << 20]
    for result in results:
        assert (result["ranks"], result["wrong"], result["backend"]) == (ranks, 0, "gloo")
        assert result["iterations"] >= 5
        assert 0 < result["best_s"] <= result["time_s"] <= result["p95_s"]
        assert result["algbw_bytes_per_s"] == pytest.approx(result["size_bytes"] / result["time_s"], rel=0.01)
        assert result["busbw_bytes_per_s"] == pytest.approx(result["algbw_bytes_per_s"] * BUSBW[ranks], rel=0.01)
        assert "not the training path" in result["path"]
        assert len(result["arrivals"]) == ranks
    assert f"--nproc-per-node={ranks}" in done.report["command"]
    wait_gone(str(tmp_path))


@pytest.mark.serial
@pytest.mark.parametrize(("ranks", "slow"), [(2, 1), (8, 5)])
def test_the_rank_that_is_slowed_by_30_ms_is_named_and_no_other(tmp_path: Path, ranks: int, slow: int) -> None:
    done = probe(tmp_path, *SMALL, "--ranks", str(ranks), MLTOP_PROBE_DELAY=f"{slow}:0.03")
    assert [suspect["rank"] for suspect in done.report["verdict"]["suspects"]] == [slow], done.report["verdict"]
    assert done.code == 1
    late = max(done.report["results"][0]["arrivals"], key=lambda arrival: float(arrival["lag_s"]))
    assert late["rank"] == slow
    assert late["lag_s"] > 0.02


@pytest.mark.parametrize("collective", ["reduce-scatter"])  # all of them: test_probe_all_reduce.py
def test_other_collectives(tmp_path: Path, collective: str) -> None:
    done = probe(tmp_path, *SMALL, "--ranks", "2", "--collective", collective)
    assert done.report["failures"] == []
    for result in done.report["results"]:
        assert (result["collective"], result["wrong"]) == (collective, 0)
        assert result["busbw_bytes_per_s"] == pytest.approx(result["algbw_bytes_per_s"] * 0.5, rel=0.01)


def begin(state: Path, *args: str, **env: str) -> subprocess.Popen[str]:
    running = subprocess.Popen(
        [*MLTOP, "probe", *args, "--json", "--force"],
        env=environment(state, **env),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdin is not None
    running.stdin.write(f"{platform.node()}\n")
    running.stdin.flush()
    return running


def end(running: subprocess.Popen[str]) -> Probed:
    out, err = running.communicate(timeout=90)
    assert "Traceback" not in err, err
    return Probed(running.returncode, json.loads(out) if out else {}, err)


def ranks_of(mark: str, count: int) -> list[int]:
    """Pids of the ranks once all are there: the youngest of launcher, store, and ranks."""

    def found() -> list[int]:
        pids = sorted(probe_processes(mark))
        return pids[-count:] if len(pids) >= count + 2 else []

    return wait_until(found, 60, "the ranks")


def test_a_rank_that_is_killed_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    # Delays make every iteration long, so that the kill hits the middle of the measurement.
    running = begin(tmp_path, *SMALL, "--ranks", "3", MLTOP_PROBE_DELAY="0:0.3,1:0.3,2:0.3")
    victim = psutil.Process(ranks_of(str(tmp_path), 3)[-1])
    # To the store and to both other ranks: a rank that dies before it measures is replaced.
    wait_until(lambda: connections(victim) >= 3, 60, "the ranks' connections")
    victim.kill()
    done = end(running)
    whys = [failure["why"] for failure in done.report["failures"]]
    assert any("SIGKILL" in why for why in whys), whys
    assert done.code == 3
    assert "SIGKILL" in done.report["verdict"]["text"] or done.report["results"]
    wait_gone(str(tmp_path))


def connections(process: psutil.Process) -> int:
    return sum(one.status == psutil.CONN_ESTABLISHED for one in process.net_connections("tcp"))


def test_the_deadline_ends_it_with_a_sentence(tmp_path: Path) -> None:
    done = probe(tmp_path, *SMALL, "--ranks", "2", "--timeout", "6", MLTOP_PROBE_DELAY="0:60")
    assert done.code == 3
    assert done.report["results"] == []
    assert done.report["verdict"]["text"].startswith("nothing was measured: ")
    (failure, *_) = done.report["failures"]
    assert " s" in failure["why"]
    wait_gone(str(tmp_path))


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    running = begin(tmp_path, *SMALL, "--ranks", "2", MLTOP_PROBE_DELAY="0:60")
    ranks_of(str(tmp_path), 2)
    running.send_signal(signal.SIGINT)
    done = end(running)
    assert done.code == 130
    assert done.report["verdict"]["text"] == "cancelled: nothing was measured"
    wait_gone(str(tmp_path))


def test_a_killed_mltop_leaves_nothing_behind(tmp_path: Path) -> None:
    running = begin(tmp_path, *SMALL, "--ranks", "2", MLTOP_PROBE_DELAY="0:60")
    ranks_of(str(tmp_path), 2)
    running.kill()
    running.communicate(timeout=30)
    wait_gone(str(tmp_path))


def test_a_python_without_torch_is_named(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run(["python3", "-m", "venv", "--without-pip", str(bare)], check=True)
    done = probe(tmp_path, *SMALL, "--ranks", "2", "--torch-python", str(bare / "bin/python"))
    assert done.code == 3
    assert "torch" in done.report["verdict"]["text"]
    assert str(bare) in json.dumps(done.report["failures"])
