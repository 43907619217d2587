"""Makes sglang's Python code usable where there is neither a GPU nor a kernel built for one.

Two things are arranged, both through hooks that their owners offer:

- importing torchvision: its PyPI wheel is linked against CUDA, does not load, and then misses the schemas of two operators. They are
  declared just before the package is imported (the module is started by the path file that ``install.sh`` writes);
- seeds per request: sglang ties them to its deterministic mode, which wants kernels for a GPU. Its plugin interface lets the plain
  torch attention take part, and leaves the GPU's matrix products alone. On a CPU in float32 what a batch changes is rounding.
"""

import sys
from importlib.abc import MetaPathFinder

OPERATORS = ("nms", "qnms")
SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


class TorchvisionSchemas(MetaPathFinder):
    """Declare the operators when torchvision is first looked for, then leave the import path."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname == "torchvision" and self in sys.meta_path:
            sys.meta_path.remove(self)
            import torch

            for operator in OPERATORS:
                torch.library.define(f"torchvision::{operator}", SCHEMA)


def register():
    """Be called by sglang when it loads its plugins."""
    from sglang.srt.arg_groups import choices
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    choices.add_deterministic_attention_backend_choices(["torch_native"])
    choices.add_radix_supported_deterministic_attention_backend_choices(["torch_native"])
    HookRegistry.register(
        "sglang.srt.model_executor.model_runner.ModelRunner.maybe_enable_batch_invariant_mode",
        lambda runner: None,
        HookType.REPLACE,
    )


if not any(isinstance(finder, TorchvisionSchemas) for finder in sys.meta_path):
    sys.meta_path.insert(0, TorchvisionSchemas())
