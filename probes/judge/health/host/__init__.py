"""Rules about the machine: processors, memory, storage, services."""
