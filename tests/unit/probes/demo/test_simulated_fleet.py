"""The simulated fleet: what it says of its nodes before and after the hang, decoded as the wire format."""

from __future__ import annotations

import json

import msgspec

from mltop.probes.agent.protocol import Message, encode, payload_of
from mltop.probes.demo.fleet import build, node_names
from mltop.probes.demo.simulated import FIRST_PID, SimulatedNode, rank_stacks
from mltop.probes.model import Sample
from mltop.probes.reach.receiving import own_type

DECODER = msgspec.json.Decoder(Message, dec_hook=own_type)


def whole_frame(node: SimulatedNode, now: float) -> bytes:
    return encode(Message("sample", node=node.name, sample=node.sample(now)))


def sample_at(node: SimulatedNode, now: float) -> Sample:
    message = DECODER.decode(payload_of(whole_frame(node, now).rstrip(b"\n")))
    assert message.node == node.name == message.sample.node
    return message.sample


def test_names_continue_from_the_first() -> None:
    assert node_names(3, 2) == ("sim002", "sim003", "sim004")


def test_samples_carry_only_names_of_the_model_and_each_once() -> None:
    for node in build(4, 1, 8, 1.0, 5.0):
        text = payload_of(whole_frame(node, node.began_at).rstrip(b"\n"))
        payload = json.loads(text, object_pairs_hook=no_twice)
        sample = sample_at(node, node.began_at)
        assert set(payload["sample"]) <= set(sample.__dataclass_fields__)
        for kind in ("gpus", "ranks"):
            for text, decoded in zip(payload["sample"].get(kind, []), getattr(sample, kind), strict=True):
                assert set(text) <= set(decoded.__dataclass_fields__)


def no_twice(pairs: list[tuple[str, object]]) -> dict[str, object]:
    names = [name for name, _ in pairs]
    assert len(names) == len(set(names)), names
    return dict(pairs)


def test_every_rank_of_one_job_is_somewhere_once() -> None:
    nodes = build(6, 2, 8, 1.0, 5.0)
    ranks = [rank for node in nodes for rank in sample_at(node, node.began_at).ranks]
    assert sorted(rank.rank for rank in ranks) == list(range(40))
    assert {rank.world_size for rank in ranks} == {40} and len({rank.job for rank in ranks}) == 1
    assert min(rank.pid for rank in ranks) > 4_194_304  # no real process can have it
    for node in nodes:
        sample = sample_at(node, node.began_at)
        held = {process.pid: gpu.index for gpu in sample.gpus for process in gpu.processes or ()}
        assert held == {rank.pid: rank.gpus[0] for rank in sample.ranks}


def test_counters_move_until_the_hang_and_never_after() -> None:
    node = build(3, 1, 8, 1.0, 5.0)[0]
    counters = [
        [(rank.voluntary_switches, rank.read_syscalls) for rank in sample_at(node, node.began_at + t).ranks]
        for t in (1.0, 2.0, 6.0, 60.0)
    ]
    assert all(later[0] > earlier[0] + 10 for earlier, later in zip(counters[0], counters[1], strict=True))
    assert counters[2] == counters[3]


def test_only_the_culprit_does_not_wait_once_hung() -> None:
    job = build(4, 1, 8, 1.0, 5.0)[0].job
    dumps = [rank_stacks(job, rank, job.hung_at + 3) for rank in range(job.world_size)]
    not_waiting = [dump for dump in dumps if dump.digests[0].waiting_in != "all_reduce"]
    assert [dump.rank for dump in not_waiting] == [job.culprit]
    assert not_waiting[0].digests[0].frames[0].function == "ShardDataset.__getitem__"
    assert len({dump.digests[0].key for dump in dumps}) == 2
    assert all(dump.before.voluntary_switches == dump.after.voluntary_switches for dump in dumps)
    assert dumps[9].node == job.nodes[1] and dumps[9].pid == FIRST_PID + 9


def test_healthy_ranks_are_seen_at_different_places() -> None:
    job = build(2, 1, 8, 1.0, 60.0)[0].job
    seen = {rank_stacks(job, 3, job.hung_at - 30 + t * 0.2).digests[0].key for t in range(20)}
    steps = {rank_stacks(job, 3, job.hung_at - 30 + t).digests[0].frames[-3].ints["step"] for t in range(5)}
    assert len(seen) == 2 and len(steps) == 5


def test_the_spare_node_has_lost_a_gpu_and_one_node_is_held_back() -> None:
    nodes = build(6, 1, 8, 1.0, 5.0)
    samples = [sample_at(node, node.began_at + 30) for node in nodes]
    lost = [(s.node, g.index) for s in samples for g in s.gpus if g.state == "lost"]
    assert lost == [("sim006", 3)] and samples[5].ranks == []
    gpu = samples[5].gpus[3]
    assert gpu.error and gpu.busy is None and gpu.last_seen_at < nodes[5].began_at
    braked = {s.node for s in samples for g in s.gpus if "power_brake" in (g.throttle_reasons or [])}
    assert braked == {"sim002"}
    assert all(sample.simulated for sample in samples)


def test_a_fleet_of_one_node_is_just_the_job() -> None:
    (node,) = build(1, 1, 8, 1.0, 5.0)
    sample = sample_at(node, node.began_at)
    assert len(sample.ranks) == 8 and all(gpu.state == "ok" for gpu in sample.gpus)
