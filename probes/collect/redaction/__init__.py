"""What may leave a node: command lines, settings and values without secrets, and the shapes of the rest."""
