"""The data port: takes requests from clients, asks the core for a place, and relays them to engines."""
