"""CronJob: jobs that start at scheduled times."""
