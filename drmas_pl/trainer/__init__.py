"""The training loop: rollout, advantages, updates, validation, checkpoints."""
