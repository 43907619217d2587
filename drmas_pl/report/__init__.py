"""The page of a run: one HTML file, made from the files in run folders alone, that needs no network and no program but a browser."""
