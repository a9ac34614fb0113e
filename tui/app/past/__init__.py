"""What was: twenty minutes of every second, four hours of every ten, and all that was told of them.

`past.py` is what the screen asks (`track.py`: one GPU's values, `sums.py`: a job's), `travel.py` the way through it;
`recorded.py` and `replay.py` put a recording in its place. `node.py` keeps one node's rows (`rings.py`), `told.py` what
was told (`changes.py`), `wholes.py` whole samples, of which `rebuilt.py` makes the sample of a moment.

Rows take two bytes a value, and are packed by the minute: 512 nodes of 8 GPUs take some 70 MB for all four hours
(`python -m tests.bench past`).
"""
