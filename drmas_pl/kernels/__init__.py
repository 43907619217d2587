"""What only makes models faster: fused layers, decode steps, and rows of a micro-batch as a prefix tree without full logits."""
