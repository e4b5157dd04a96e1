"""From events to tables: pure functions from DataFrame to DataFrame."""
