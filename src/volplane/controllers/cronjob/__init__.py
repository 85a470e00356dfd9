"""CronJob: jobs that start by the clock."""
