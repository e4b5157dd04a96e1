"""What a job is to its author.

definition (`@job`, messages), arguments, codec, options (of an enqueue), context (what a handler sees).
"""
