"""The demo's probes: recorded events of single GPUs replayed, collectives over simulated nodes."""
