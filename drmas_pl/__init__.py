"""Train teams of LLM agents with reinforcement learning on PyTorch Lightning."""

__version__ = "0.1.0"
