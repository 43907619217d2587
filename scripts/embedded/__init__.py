"""Programs that build the data and the small models shipped with the package."""
