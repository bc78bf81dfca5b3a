"""What each kind of model server wants: arguments, environment, probes, stop, request paths. Describes, never acts."""
