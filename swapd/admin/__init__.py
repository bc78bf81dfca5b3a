"""The operator's side: the status document, the event stream, and orders, on a unix socket."""
