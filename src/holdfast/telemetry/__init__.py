"""Metrics, traces and logs of the queue, the worker and the service. Metrics and traces are off until enabled."""
