"""From what a dead job's files tell to who failed first. A victim is never named: what cannot be told is said."""
