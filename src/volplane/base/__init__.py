"""What every package uses: clock, log, metrics, trace, retries, tasks, files. Knows no volumes."""
