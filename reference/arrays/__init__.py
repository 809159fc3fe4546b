"""The reference manager over arrays, and its kernels: CuPy on a GPU, NumPy on a CPU."""
