"""Every number that motion is judged by, in one place.

Rates come from gloo jobs at one sample a second: a hung rank's main thread makes no switch, no read or write call and
uses no CPU (a DataLoader's poll: 1 to 2 switches and 0.3 ms every five seconds); a slow healthy one makes 27 to 63
switches, 18 to 80 calls and uses 3.4 to 16 ms every second, of which the slowest makes nothing for most of a step.
"""

from __future__ import annotations

# One rank between two samples
CALLS_PER_S = 20.0  # reads and writes of any thread: watchdogs and NCCL's proxies make 4 to 5
HELPERS_CALLS_PER_S = 10.0  # at most, of threads beside the main one, where its own are not known
TAKES_PART_LOOKS = 10  # at work with the others: from then on a main thread that sleeps does not work, whoever calls
SWITCHES_LEAST, SWITCHES_PER_S = 3.0, 0.5  # of the main thread: more than that is no poll of a DataLoader
CALLS_BESIDE, CALLS_PER_SWITCH = 2, 0.5  # with as many calls, switches are work and no poll of a lock
MAIN_CPU_LEAST = 0.0004  # of a core: what being stopped and looked at costs (judge/hang/thresholds.py)
MAIN_CPU_UNREAD = 0.002  # the same where calls cannot be read: polls cost less
MAIN_CPU_WORKS = 0.02  # switches with so much CPU are work, even without a call …
CPU_PER_SWITCH = 1e-4  # s, and with so much each: waking up from a sleep and looking takes half of it
# Ray's workers wake up 66 times a second in their main thread, for 1 to 2 % of a core, whatever they train.
# They read and write up to four times a second meanwhile; a step of gloo makes 25 calls (3 ranks).
STEADY, STEADY_LOOKS, STEADY_PER_S, STEADY_CPU = 0.15, 5, 10.0, 0.05
RAYS_CALLS_PER_S = 8.0
FLAT_LEAST, FLAT_PER_S = 2.0, 0.5  # calls: no more than that is none
MAIN_CPU_SAVES = 0.2  # a few calls with so much: large writes
SPINS = 0.05  # of a core, by the main thread, with nothing else: computes or loops, where others want the cores, too
OTHERS_CPU = 0.3  # of a core, by other threads or children: compiles, loads, saves
LOADING_READS_PER_S, LOADING_READS_PER_WRITE = 20.0, 10.0  # imports and indexing read and hardly write

MOVES_APART_S = 2.5  # few ranks that move for so long go on

# One GPU
TENSOR_WORKS, DRAM_WORKS, SM_WORKS = 0.02, 0.05, 0.5  # a collective's kernel that waits has a few SMs and no memory
BUSY_IDLE, BUSY_RESIDENT = 0.05, 0.95  # in between, kernels come and go
POWER_WORKS = 0.35  # of what lies between idle and the limit
IDLE_POWER = 0.14  # of the limit, where no idle GPU of the model was seen: H100 0.10, A100, B200, T4 0.14
POWER_FAULTY = 0.02  # of the limit: no GPU draws so little
NVLINK_BYTES_PER_S, PCIE_BYTES_PER_S, PORT_BYTES_PER_S = 50e6, 100e6, 50e6  # per GPU; of ports per rank
MEMORY_BYTES = 2 << 20  # allocated or freed

# A job
STILL_SHARE = 0.9  # of the ranks that are seen
LEAST_SIGNALS = 2  # independent ones, on each of them
WINDOW_S, WINDOW_SAMPLES = 3.0, 2.5  # what moved within this moves: steps of seconds have still samples
STALE_S, STALE_SAMPLES = 15.0, 4.0  # a node without a sample for longer is not seen
EVALUATE_S = 0.9
STEPPING_S, STEPPING_LOOKS = 8.0, 4  # all ranks at work for so long: it steps
GPU_RANKS = 0.5  # and of a job on GPUs so many of these compute
QUIET_S, SLACK_S = 8.0, 0.25  # a fallen job is line 1 within 10 s; samples come with jitter: 7.8 s are 8
CRASH_SETTLED_S = 5.0  # after a rank's end its launcher may end the others
QUIET_RHYTHMS = 1.5  # a job that pauses in each step is quiet after as many
QUIET_MOST_S = 120.0
RECURRING = 3  # pauses: as many of a kind are how the job works
PATIENCE_S, PATIENCE_RHYTHMS, PATIENCE_PAUSES, PATIENCE_MOST_S = 60.0, 10.0, 2.0, 1800.0
UNKNOWN_PATIENCE_S = 300.0  # of a job that was never seen to step: compiling and indexing look the same
# Where a main thread spins and nothing else moves: an evaluation on the CPU looks like an endless loop.
SPIN_QUIET_S, SPIN_PATIENCE_S = 60.0, 180.0
PAUSE_LEAST_S, MOST_PAUSES = 5.0, 16
YOUNG_S = 1800.0  # a job that has run for longer and was not seen to step is not starting
TELLING_S, TOLD_S = 5.0, 300.0  # what ranks do before they log that they waited in vain; and how long that counts
RECORDING_S = 15.0  # and after it: so long torch waits until all have written their flight records
TEARDOWN_S = 60.0
ENDING_SHARE = 0.5  # of the ranks are gone: the job is over

# Who differs
ODD_SHARE, LEAST_COMPARED, MOST_ODD = 0.1, 3, 16
BLOCKED_S = 5.0  # in state D for so long
RESIDENT_SHARE = 0.75
STOPPED_S = 4.0  # in state T or t at every look
