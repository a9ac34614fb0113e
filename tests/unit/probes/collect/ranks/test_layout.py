"""What titles and command lines say of a rank's place."""

from __future__ import annotations

import pytest

from mltop.probes.collect.ranks.layout import parallel_of, server_rank, sizes_of, title_of

MEGATRON = "python pretrain_gpt.py --tensor-model-parallel-size 2 --pipeline-model-parallel-size=2"


def of(command: str, rank: int | None, world: int | None, launcher: str = "torchrun") -> dict[str, int]:
    return parallel_of([command.split()], rank, world, launcher)


@pytest.mark.parametrize(
    ("command", "rank", "world", "expected"),
    [
        (MEGATRON, 5, 8, "tp=1/2 pp=1/2 dp=0/2"),
        (MEGATRON, 6, 16, "tp=0/2 pp=0/2 dp=3/4"),
        (f"{MEGATRON} --use-tp-pp-dp-mapping", 5, 8, "tp=1/2 pp=0/2 dp=1/2"),
        (f"{MEGATRON} --context-parallel-size 2", 5, 8, "tp=1/2 pp=1/2 cp=0/2"),
        (f"{MEGATRON} --context-parallel-size 2", 3, 16, "tp=1/2 pp=0/2 dp=0/2 cp=1/2"),
        (f"{MEGATRON} --expert-model-parallel-size 2", 3, 8, "tp=1/2 pp=0/2 dp=1/2 ep=1/2"),
        (f"{MEGATRON} --expert-model-parallel-size 2 --expert-tensor-parallel-size 1", 3, 8, "tp=1/2 pp=0/2 dp=1/2"),
        ("python pretrain_gpt.py --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1", 3, 8, "dp=3/8"),
        ("trtllm-llmapi-launch trtllm-serve model --tp_size 2 --pp_size 2", 3, 4, "tp=1/2 pp=1/2"),
        # Nothing is guessed:
        (MEGATRON, 5, 10, ""),
        (MEGATRON, None, 8, ""),
        (MEGATRON, 8, 8, ""),
        (MEGATRON, 3, None, ""),
        (f"{MEGATRON} --use-checkpoint-args", 5, 8, ""),
        (f"{MEGATRON} --yaml-cfg x.yaml", 5, 8, ""),
        (f"{MEGATRON} --arguments that are cut off he…", 5, 8, ""),
        (f"{MEGATRON} --context-parallel-size two", 5, 8, ""),
        (f"{MEGATRON} --context-parallel-size 0", 5, 8, ""),
        ("python train.py --config llama.toml", 5, 8, ""),
        ("python train.py --pipeline-parallel-size 2", 5, 8, ""),
        ("trtllm-serve model --tp_size 2", 3, 4, ""),
    ],
)
def test_a_training_ranks_place(command: str, rank: int | None, world: int | None, expected: str) -> None:
    shown = of(command, rank, world)
    places = [f"{axis}={shown[axis]}/{shown[f'{axis}_size']}" for axis in shown if not axis.endswith("_size")]
    assert " ".join(places) == expected


def test_deepspeeds_pipeline_is_its_slowest_axis() -> None:
    assert of("python train.py --pipeline-parallel-size 2", 5, 8, "deepspeed") == {"pp": 1, "pp_size": 2}


def test_a_launchers_options_count_where_the_ranks_own_say_nothing() -> None:
    lines = [["python", "train.py"], MEGATRON.split()]
    assert parallel_of(lines, 1, 4, "torchrun") == {"tp": 1, "tp_size": 2, "pp": 0, "pp_size": 2}


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("VLLM::Worker", ("vllm", "worker", {})),
        ("VLLM::Worker_DP1_PP0_TP3_EP7", ("vllm", "worker", {"dp": 1, "pp": 0, "tp": 3, "ep": 7})),
        ("my-prefix::Worker_TP1", ("vllm", "worker", {"tp": 1})),
        ("VLLM::EngineCore_DP3", ("vllm", "engine", {"dp": 3})),
        ("VLLM::APIServer_1", ("vllm", "other", {})),
        ("VLLM::DPCoordinator", ("vllm", "other", {})),
        ("sglang::scheduler_DP0_PP1_TP2_EP1", ("sglang", "worker", {"dp": 0, "pp": 1, "tp": 2, "ep": 1})),
        ("sglang::detokenizer", ("sglang", "other", {})),
        ("ray::Worker", None),
        ("other::EngineCore", None),
        ("VLLM::Worker_TPx", None),
        ("std::vector", None),
        ("python", None),
        ("", None),
    ],
)
def test_titles(title: str, expected: tuple[str, str, dict[str, int]] | None) -> None:
    found = title_of([title])
    assert (None if found is None else (found.framework.name, found.kind, found.place)) == expected
    assert title_of([]) is None


@pytest.mark.parametrize(
    ("title", "sizes", "attention_dp", "rank"),
    [
        ("VLLM::Worker_DP1_PP1_TP1", {"tp": 2, "pp": 2, "dp": 2}, False, 7),
        ("VLLM::Worker_TP3", {}, False, 3),
        ("VLLM::Worker_PP1_TP3", {}, False, None),  # how many tp has is not known
        ("VLLM::Worker_PP1_TP3", {"tp": 4}, False, 7),
        ("VLLM::Worker_TP3", {"tp": 2, "pp": 1, "dp": 1}, False, None),  # they do not fit
        ("sglang::scheduler_DP1_TP3", {"tp": 4, "pp": 1, "dp": 2}, True, 3),
        ("sglang::scheduler_DP1_TP3", {"tp": 4, "pp": 1, "dp": 2}, False, 7),
    ],
)
def test_a_workers_number(title: str, sizes: dict[str, int], attention_dp: bool, rank: int | None) -> None:
    found = title_of([title])
    assert found is not None
    assert server_rank(found, sizes, attention_dp) == rank


def test_a_servers_sizes_are_unknown_where_a_file_may_have_them() -> None:
    title = title_of(["VLLM::Worker"])
    assert title is not None
    assert sizes_of(["vllm", "serve", "m", "-tp", "4"], title.framework) == {"tp": 4, "pp": 1, "dp": 1}
    assert sizes_of(["vllm", "serve", "--config", "x.yaml"], title.framework) is None
