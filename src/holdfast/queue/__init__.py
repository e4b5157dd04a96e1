"""A store bound to one tenant.

queue (the class) and connection (opening, closing, shared round trips); ticket and records (what callers get);
coalesce (concurrent calls share a round trip); waiting (for results); claims (claims that wait).
"""
