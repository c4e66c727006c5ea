"""What is measured of each kernel: one module for each of `app/kernels/triton`, with the same name."""
