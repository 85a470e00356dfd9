"""What all reconcilers share: the queue of keys, the controller's frame, leader election, events."""
