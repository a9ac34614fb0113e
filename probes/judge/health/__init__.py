"""Health rules: from samples to findings. One file per subject holds its rules."""
