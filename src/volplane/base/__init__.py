"""Clock, log, metrics, trace: what every room stands on. Nothing here knows a volume."""
