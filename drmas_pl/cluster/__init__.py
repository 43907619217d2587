"""Worker groups whose ranks are processes of a Ray cluster, on this machine and others. Needs the extra ``ray``."""
