"""Whether a mathematical answer equals its reference: reading, normalising and comparing expressions."""
