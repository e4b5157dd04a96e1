"""What the routes do, by subject. Each module has its part of the table in `ROUTES`."""
