"""Inference engines: token ids in, token ids and sampled log-probs out."""
