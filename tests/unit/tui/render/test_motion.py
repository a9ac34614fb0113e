"""How a job gets on, in words."""

from __future__ import annotations

import pytest

from mltop.probes.model import JobMotion, Rhythm, Slowdown
from mltop.tui.render.states import motion_words

STEP = Rhythm(2.1, 0.03, 40)


@pytest.mark.parametrize(
    ("motion", "words"),
    [
        (JobMotion("a", 0, phase="moving", rhythm=STEP), "step 2.1 s ± 3 %"),
        (JobMotion("a", 0, phase="moving", rhythm=Rhythm(30.0, 0.0, 9)), "step 30.0 s ± 1 %"),
        (JobMotion("a", 0, phase="moving", rhythm=Rhythm(312.4, 0.1, 9)), "step 312 s ± 10 %"),
        (JobMotion("a", 0, phase="moving"), "moving"),
        (JobMotion("a", 0, phase="starting"), "starting"),
        (JobMotion("a", 0), "unknown"),
        (JobMotion("a", 0, phase="quiet", at=112.0, since=100.0, rhythm=STEP), "stalled? 12s"),
        (JobMotion("a", 0, phase="stalled", at=490.0, since=100.0, rhythm=STEP), "stalled 6m30s"),
        (
            JobMotion("a", 0, phase="moving", rhythm=STEP, slowdown=Slowdown(2.1, 2.52, 5.0)),
            "step 2.1 s ± 3 %, 20 % slower",
        ),
        (JobMotion("a", 0, phase="moving", slowdown=Slowdown(1.0, 1.12, 5.0)), "moving, 12 % slower"),
    ],
)
def test_words(motion: JobMotion, words: str) -> None:
    assert motion_words(motion) == words
