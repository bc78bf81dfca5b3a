"""What must survive a restart: how long loads take, and which instance ids were given out."""
