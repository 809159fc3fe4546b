"""Proofs about the CUDA kernels, from the PTX that NVRTC emits."""
