"""The daemon: composes the rooms, moves facts to the core and orders to the rooms."""
