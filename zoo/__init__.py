"""The zoo: architectures of many kinds with random weights, exported from PyTorch, built and compared."""
