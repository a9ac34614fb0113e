"""What stands in a job's log files, read as a stream: lines that tell of an end, who wrote them, and when."""
