"""What every reconciler stands on: queues of keys, the controller's frame, leader election, events."""
