"""The fast path of the data port: requests of plain form on raw protocols, from client to engine without a task."""
