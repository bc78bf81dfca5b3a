"""What must survive a restart: load times, footprints, demand by the hour, and which instance ids were given out."""
