"""The stores. No module imports them: `holdfast.opening` finds them by their entry points."""
