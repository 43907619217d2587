"""What produces the data, models and experiments of the package; not part of the wheel."""
