"""Groups of snapshots: taken and deleted by the driver as a whole."""
