"""Requests, answers and problems of the HTTP service. The service and the Python client share them."""
