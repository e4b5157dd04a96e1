"""Metrics, traces and logs, recorded in the queue and the worker alone. Off until switched on."""
