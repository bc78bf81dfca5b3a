"""Prometheus metrics: declared in one place, fed by the core's notes, the requests' ends and the node's snapshot."""
