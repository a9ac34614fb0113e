"""What mltop may cost at one sample a second: on a node (`tests.bench agent`, `bash tests/gpu`) and in memory."""

AGENT_CPU_PERCENT = 0.5  # of one core, all of its processes
# Of all its processes, beside what NVML takes in any process (`bash tests/gpu --only cost` measures that by itself).
# Two interpreters with their modules take 30 MiB where other Pythons share pages with them, 37 MiB where none do.
AGENT_PSS_MIB = 38.0
NVML_CALLS = 12.0  # per GPU and second
GEMM_PERCENT = 0.5  # of the rate of a GEMM that runs meanwhile

# What the screen keeps of the past may cost: 512 nodes of 8 GPUs at one sample a second, four hours of them.
PAST_CPU_PERCENT = 1.0  # of one core
PAST_MIB = 150.0
PAST_PICTURE_MS = 50.0  # of all of them a second after the one before, as a key that is held asks for it
PAST_GRAPH_MS = 2.0  # of a job on all of them, to be drawn once a second

# From the start of the process on this machine; what a command must wait for (rates, error counters) comes on top.
FIRST_SAMPLE_S = 1.0
ANSWER_S = 1.0
