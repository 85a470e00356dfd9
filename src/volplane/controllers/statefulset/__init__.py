"""StatefulSet: pods with stable names, an order, and their own volumes."""
