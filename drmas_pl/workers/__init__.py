"""Worker groups: one set of weights with its optimizer, engine and lifecycle, serving one or more agents."""
