"""Shows: the command line, the screen, and the same content as text."""
