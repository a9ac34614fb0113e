"""Is mltop right about a GPU? Second sources tell the same values, known loads have known effects (`bash tests/gpu`).

checks: what an answer is. sources: who else can be asked. slices: what is asked, one subject each. run: one after the
other, each in a child process with a deadline; child: that process. probing: mltop's probes, as its agent runs them;
plain: torch programs that measure the same and share nothing with them. machine: versions. report: the text.
Nothing here changes anything on the machine: no clocks, limits, modes, resets.
"""
