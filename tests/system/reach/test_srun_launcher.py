"""The srun command line, and what its last words mean."""

from __future__ import annotations

import itertools

import pytest

from mltop.probes.reach import UsageProblem
from mltop.probes.reach.channel import Ending, LaunchOptions
from mltop.probes.reach.launchers.srun import NodeEndings, command, launch, srun_ended, stream


def test_one_srun_beside_the_steps_of_the_job() -> None:
    argv = command(("gpu01", "gpu02"), LaunchOptions(interval_s=2.0, job="9"), {})
    assert argv[:3] == ("env", "srun", "--overlap")
    assert {"--jobid=9", "--nodes=2", "--ntasks=2", "--nodelist=gpu01,gpu02", "--mem=0", "--label"} < set(argv)
    assert argv[-3:-1] == ("/bin/sh", "-c")
    assert "--node " not in argv[-1]  # each agent learns its node's name from Slurm
    assert "--frame-bytes 900" in argv[-1]
    assert argv[-1].startswith("unset SLURM_PROCID")


def test_options_of_the_step_around_us_are_not_inherited() -> None:
    environ = {"SLURM_NTASKS": "8", "SLURM_CONF": "/etc/x", "SLURM_MEM_PER_CPU": "1", "PATH": "/bin", "PMI_RANK": "3"}
    argv = command(("a",), LaunchOptions(job="9"), environ)
    unset = [name for option, name in itertools.pairwise(argv) if option == "-u"]
    assert unset == ["PMI_RANK", "SLURM_MEM_PER_CPU", "SLURM_NTASKS"]
    assert argv[2 * len(unset) + 1] == "srun"


def test_a_component_of_a_heterogeneous_job_is_named_as_srun_wants_it() -> None:
    assert {"--jobid=9", "--het-group=1"} < set(command(("a",), LaunchOptions(job="9+1"), {}))


def test_srun_needs_a_job() -> None:
    with pytest.raises(UsageProblem, match="needs a Slurm job"):
        launch(("a",), LaunchOptions())


@pytest.mark.parametrize(
    ("code", "words", "reason", "retry"),
    [
        (1, "srun: error: Slurm job 2 has expired", "the Slurm job ended", False),
        (
            1,
            "srun: error: Unable to confirm allocation for job 4711: Invalid job id specified",
            "the Slurm job ended",
            False,
        ),
        (
            1,
            "srun: error: Unable to create step for job 3: Access/permission denied",
            "Slurm job 3 is another user's",
            False,
        ),
        (
            1,
            "srun: error: Unable to confirm allocation for job 3: Unable to contact slurm controller (connect failure)",
            "controller does not answer",
            True,
        ),
        (
            1,
            "srun: error: Unable to create step for job 3: Requested node configuration is not available",
            "not a node",
            True,
        ),
        (
            1,
            "srun: error: Unable to confirm allocation for job 4: Job is pending execution",
            "waits for its nodes",
            True,
        ),
        (
            140,
            "srun: error: Application launch failed: Socket timed out on send/recv operation\n"
            "0: slurmstepd-gpu01: error: *** STEP 1.70 ON gpu01 CANCELLED AT 2026-11-20T14:54:17 ***\n"
            "srun: error: gpu01: task 0: Killed",
            "slurmd does not answer",
            True,
        ),
        (0, "slurmstepd-gpu01: error: *** STEP 1.1 ON gpu01 CANCELLED AT … ***", "Slurm cancelled", True),
        (1, "srun: unrecognized option '--overlap'", "older than 20.11", False),
        (97, "srun: error: gpu02: task 1: Exited with exit code 97", "no Python 3.9", True),
        (
            -9,
            "srun: cluster configuration lacks support for cpu binding",
            "the agent ended (killed by signal 9)",
            True,
        ),
    ],
)
def test_last_words(code: int, words: str, reason: str, retry: bool) -> None:
    ending = srun_ended(code, words, job="3")
    assert reason in ending.reason
    assert "cpu binding" not in str(ending)
    assert ending.retry is retry


def test_one_node_that_ends_is_told_from_the_end_of_all() -> None:
    ended = NodeEndings(("gpu01", "gpu02"))
    assert ended("srun: error: gpu02: task 1: Killed") == ("gpu02", Ending("the agent ended (killed)"))
    assert ended("srun: error: gpu01: task 0: Exited with exit code 1") == (
        "gpu01",
        Ending("the agent ended (exited with exit code 1)"),
    )
    no_python = ended("srun: error: gpu01: task 0: Exited with exit code 97")
    assert no_python is not None
    assert "no Python 3.9" in no_python[1].reason
    assert ended("srun: error: gpu07: task 0: Killed") is None
    assert ended("slurmstepd-gpu01: error: *** STEP 1.0 ON gpu01 CANCELLED AT 2026-11-20T14:54:17 ***") is None
    assert ended("srun: error: gpu02: task 1: Killed") is None
    assert NodeEndings(("gpu01",))("srun: error: gpu01: task 0: Killed") is None


def test_a_start_after_a_cancelled_step_hears_its_nodes_end_again() -> None:
    channel = stream(LaunchOptions(job="3"), ("gpu01", "gpu02"))
    assert channel.node_endings is not None
    cancelled, again = channel.node_endings(), channel.node_endings()
    assert cancelled("slurmstepd-gpu01: error: *** STEP 1.0 ON gpu01 CANCELLED AT 2026-11-20T14:54:17 ***") is None
    assert again("srun: error: gpu02: task 1: Killed") == ("gpu02", Ending("the agent ended (killed)"))
