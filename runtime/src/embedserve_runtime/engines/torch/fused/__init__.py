"""Fused operations of the torch engine on kernels in Triton."""

import os

# A product and the sum that takes it in one instruction: Triton 3.9 wants this said, later ones take it for off.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
