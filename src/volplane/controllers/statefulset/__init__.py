"""StatefulSet: pods with names, an order, and volumes that stay theirs."""
