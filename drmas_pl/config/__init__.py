"""From the command line to objects: the only place that sees a Hydra configuration."""
