"""Work: what kernels do - their kind, FLOPs and bytes."""
