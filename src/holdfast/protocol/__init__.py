"""What goes over HTTP, for the service and for clients in Python: requests and answers."""
