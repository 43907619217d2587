"""Rows of one micro-batch computed without padding, shared beginnings once, and without logits over the whole vocabulary."""
