"""What mltop may cost on a node at one sample a second: the benchmark of the agent and `bash tests/gpu` measure it."""

AGENT_CPU_PERCENT = 0.5  # of one core, all of its processes
AGENT_PSS_MIB = 30.0
NVML_CALLS = 12.0  # per GPU and second
GEMM_PERCENT = 0.5  # of the rate of a GEMM that runs meanwhile
