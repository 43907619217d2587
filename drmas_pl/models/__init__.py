"""Language models: loading, adapters, value heads, files in shares, tiny random ones."""
