"""The commands of the command line, a module each with ``run()``; loaded when they are used."""
