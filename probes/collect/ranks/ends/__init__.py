"""How ranks end: what the kernel, their launchers and their error files tell of it."""
