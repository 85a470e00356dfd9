"""Endpoints and EndpointSlices of Services with a selector."""
