"""What is measured of each kernel: one module for each below `app/kernels/triton`, with the same name."""
