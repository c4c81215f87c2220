"""The kernels themselves, in Triton or Gluon."""
