"""What was: twenty minutes of every second, four hours of every ten, and all that was told of them.

`past.py` is what the screen asks (`track.py`: one GPU's values, `sums.py`: a job's), `travel.py` the way through it;
`recorded.py` and `replay.py` put a recording in its place.

Values of a second lie as half floats behind each other, and a minute of them packed: 512 nodes of 8 GPUs take some
90 MB for all four hours, and some 1 % of a core (`python -m tests.bench past`).
"""
