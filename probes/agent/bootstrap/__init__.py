"""Stage 1 of the bootstrap: finds or installs the bundle on a node, then becomes the agent.

The text of these files, in the order of ``PARTS``, is sent over stdin to the Python that stage 0 found
(``reach/launchers/remote_command.py``), followed by a call of ``main`` with the hashes of the bundles
(``reach/bundle``). Nothing of ours is importable yet: standard library only; what one file takes from an earlier one
is there already, and the lines that import it are left out. ``probes/system/{writable,blobs}.py`` go before them all.

1. Cache folder: the first of ~/.cache/mltop, $XDG_RUNTIME_DIR/mltop, {/tmp,/var/tmp,/dev/shm}/mltop-UID that is a
   real directory of this user (made 0700), which nobody else can replace, can be written, and answers within some
   seconds; else memory.
2. Boot frame to the caller. A bundle in the cache is used when its hash is right.
3. Otherwise the caller sends the file "bundle": a stored zip, gzipped. Its hash is checked before it is looked into.
   It is written beside and renamed to ``<root>/<sha256>/bundle.zip``: no locks, any number of nodes may share a home.
4. Its modules are compiled and kept beside it, once for each version of Python.
5. The agent's ``main`` runs in this very process. Its import path is the standard library, and the bundle in memory:
   nothing that lies in the cache is found by its name, or read again, unless the kernel refuses files in memory.
"""

PARTS = ("zipped.py", "cache.py", "stage1.py")
