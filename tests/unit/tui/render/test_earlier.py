"""The screen's memory of ranks: the sample before the newest, of the same process."""

from mltop.probes.model import NodeState, RankSample, Sample
from mltop.probes.reach.view import FleetView, NodeView
from mltop.tui.render.earlier import EarlierRanks


def view(*samples):
    return FleetView(0.0, tuple(NodeView(NodeState(s.node, "live"), s) for s in samples))


def sample(at, *ranks, node="n1"):
    return Sample(node, at, ranks=list(ranks), interval_s=1.0)


def rank(switches, started_at=5.0, pid=9):
    return RankSample(pid, 0, started_at=started_at, voluntary_switches=switches, read_syscalls=1, write_syscalls=2)


def fed(*views):
    earlier = EarlierRanks()
    for one in views:
        earlier.feed(one)
    return earlier


def test_the_same_rank_one_sample_ago():
    earlier = fed(view(sample(1.0, rank(10))))
    assert earlier.rank("n1", 9) is None
    for _ in range(2):  # the same view again changes nothing
        earlier.feed(view(sample(3.5, rank(20))))
    before = earlier.rank("n1", 9)
    assert (before.voluntary_switches, before.elapsed_s) == (10, 2.5)
    assert earlier.rank("n1", 10) is None
    assert earlier.rank("n2", 9) is None


def test_a_pid_that_was_used_again_is_another_process():
    assert fed(view(sample(1.0, rank(10))), view(sample(2.0, rank(20, started_at=77.0)))).rank("n1", 9) is None


def test_time_that_goes_backwards_gives_no_rate():
    assert fed(view(sample(10.0, rank(10))), view(sample(5.0, rank(20)))).rank("n1", 9) is None


def test_nodes_that_left_are_forgotten_and_silent_ones_are_not():
    both = [view(sample(at, rank(10)), sample(at, rank(10), node="n2")) for at in (1.0, 2.0)]
    earlier = fed(*both, view(sample(3.0, rank(10))))
    assert earlier.rank("n2", 9) is None
    silent = FleetView(0.0, (NodeView(NodeState("n1", "lost"), None),))
    assert fed(*both, silent).rank("n1", 9) is not None


def test_a_copy_stands_still():
    earlier = fed(view(sample(1.0, rank(10))), view(sample(2.0, rank(20))))
    frozen = earlier.copy()
    earlier.feed(view(sample(3.0, rank(30))))
    assert frozen.rank("n1", 9).voluntary_switches == 10
    assert earlier.rank("n1", 9).voluntary_switches == 20
