"""Every number the hang judge decides by, in one place.

Rates come from gloo jobs hung in eight ways, from healthy ones, and from jobs on an H100. In 10 s a hung rank's main
thread makes 0 to 2 voluntary switches and no read or write call, a healthy or straggling one 36 and more. The other
threads of a rank that hangs in NCCL (watchdog, proxies) make 4.3 calls a second; all threads of a slow healthy one 20.
"""

from __future__ import annotations

# Movement of one rank, between two dumps
MOVE_PER_S = 0.5  # the thread's voluntary switches, or reads and writes; a DataLoader's poll every 5 s makes 0.2
MOVE_PROCESS_CALLS_PER_S = 10.0  # reads and writes of all threads, where those of the thread are not known
MOVE_COUNT = 2  # at least so many: one single switch in a short window is that poll
# Switches alone do not prove movement: a debugger that stops the process (another mltop, py-spy) makes 2 each time.
# The main thread's CPU time tells them apart: 0.06 ms/s when dumped twice a second, 4 to 7 ms/s in a slow healthy job.
MOVE_CPU_S_PER_S = 0.0004
BUSY_CPU = 0.5  # of one core: above it a rank without system calls computes or loops
BUSY_MAIN_CPU = 0.05  # of one core, of the main thread: the same on a machine with more ranks than cores
BUSY_ROUNDS = 0.5  # of the dumps, more of them in state R: the same where no CPU time is known
# Jobs that poll, measured: a sleep of 1 s, 0.1 s and 10 ms between two looks costs 0.1, 1 and 10 ms/s, one of 1 ms 28.
POLL_CPU = 0.05  # of one core, of the main thread: what uses more does something between its sleeps
POLL_ROUNDS = 3  # dumps, at least: fewer may meet any job between two steps
POLL_PLACE_SHARE = 0.6  # of a rank's dumps show the sleep itself, the others the look
POLL_SURE_S = 300.0  # from here on a poll that nobody knows by name is a hang, where no rhythm is known (idle servers)

# Movement of the job
MOVING_SHARE = 0.5  # of the ranks: more of them moving means that the job moves
RESTLESS_SHARE = 0.1  # of the waiting ranks may move without the job being called moving
READABLE_SHARE = 0.5  # of the ranks must have a readable stack

# How sure: seconds that the waiting ranks were watched without a movement, and before that in the samples
WINDOW_LEAST_S = 0.5  # less than this and no history: nothing can be said
WINDOW_SHORT_S = 3.0  # less than this and no history: low
WINDOW_LONG_S = 5.0  # from here on: high
WINDOW_SLACK_S = 0.25  # rounds are timed with jitter: 4.8 s count as 5
TOLD_WINDOW_S = 0.05  # less than this is one look: a duration would be said as "0.0 s"
TOLD_QUIET_S = 1.0  # less than this is not worth a word
QUIET_SHORT_S = 10.0
QUIET_LONG_S = 30.0
QUIET_RATE_PER_S = 0.25  # a counter that moves slower than this stands still (DataLoader poll)

# A checkpoint or an evaluation on one rank looks like a hang: how long the standstill must be known (watched and
# quiet before) until a rank that computes may be accused with medium and with high confidence, and until one may be at
# all that stands still below such a function, or is the first one while the others are where only it keeps them.
WORK_MEDIUM_S = 60.0
WORK_HIGH_S = 120.0
SAVING_HIGH_S = 60.0
# The same where it is known how long a step of the job takes: of all that looks like work.
WORK_LEAST_S = 60.0
WORK_STEPS = 10

KERNEL_PHRASES = 3  # of what the node says of a kernel function
KERNEL_ROUNDS = 2  # D in one round is normal, in all of at least so many it is stuck
ALIKE_SHARE = 2 / 3  # of the ranks: so many that stand in one place wait for those who do not
MAJORITY_FIRM = 2 / 3  # a mismatch against less than this share of the ranks is of low confidence

# Straggler: shares of the rounds in which a rank waits for others
STRAGGLER_ROUNDS = 8
STRAGGLER_ROUNDS_FIRM = 16
STRAGGLER_SHARE = 0.5  # of the median of the others, at most
STRAGGLER_MEDIAN = 0.3  # the others' median, at least: else nobody is held up
STRAGGLER_CHANCE = 0.01  # that so low a share comes up among all ranks by luck, at most
STRAGGLER_MINORITY = 0.25  # of the ranks may be stragglers; more are two kinds of ranks (pipeline stages)

SMALL_DIFFERENCE = 2  # between loop counters of ranks that stand in the same collective
LISTED_RANKS = 8  # a tie lists every rank up to so many, then one per side
EVIDENCE_PLACES = 4  # places outside collectives shown in evidence
