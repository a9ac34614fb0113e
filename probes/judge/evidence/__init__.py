"""What a job itself told, judged: its logs, its recorders' counters, NCCL's own view. Pure."""
