"""Every health rule driven the whole way: fake machines, real agents, the real hub, the real rules."""
