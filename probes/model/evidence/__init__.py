"""What a job itself told: lines of its logs, the counters and records of its collectives. Nothing is judged here."""
