"""Probes that put load on hardware, each a separate process. None is built yet; `collect` only ever reads."""
