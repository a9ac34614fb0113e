"""Probes that put load on hardware, each in processes of its own; ``collect`` only ever reads.

``supervise`` starts them, watches their deadlines and ends them; ``child`` is what their processes share;
``torch_side`` what they ask of torch beside their work, ``torch_errors`` what its exceptions mean.
"""
