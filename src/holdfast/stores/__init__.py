"""The stores. Nobody imports them: they are found by their entry points (see `holdfast.store`)."""
