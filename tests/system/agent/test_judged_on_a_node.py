"""A node judges itself with the Python that it has."""

from __future__ import annotations

import pickle
import subprocess

from tests import pythons
from tests.builders.judged_apart import in_halves, in_one_place, samples_of
from tests.documents import ROOT

ON_A_NODE = """
import pickle, sys
sys.path.insert(0, sys.argv[1])
from mltop.probes.judge.health.node import NodeJudge
from mltop.probes.judge.stall.node import NodeMotion
from mltop.probes.model import to_json
judges, motions = {}, {}
for sample in pickle.load(sys.stdin.buffer):
    judge = judges.setdefault(sample.node, NodeJudge(sample.node))
    judge.see(sample)
    motions.setdefault(sample.node, NodeMotion(sample.node)).see(sample)
    print(to_json(judge.judged()))
assert {len(part.ranks) for motion in motions.values() for part in motion.parts} == {8}, motions
"""


def test_a_node_judges_itself_with_any_python_and_nothing_else() -> None:
    """The oldest there is, of the standard library alone."""
    samples = samples_of("driver")
    oldest = pythons.found()[pythons.operators((3, 9))[0]]
    run = subprocess.run(
        [oldest, "-S", "-E", "-c", ON_A_NODE, ROOT / ".dev"],
        input=pickle.dumps(samples),
        capture_output=True,
        check=False,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr.decode()
    lines = iter(run.stdout.splitlines())
    assert list(in_halves(samples, lambda _: next(lines))) == list(in_one_place(samples))
