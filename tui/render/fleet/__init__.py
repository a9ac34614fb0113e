"""Many nodes: the header, the map, the lines of nodes."""
