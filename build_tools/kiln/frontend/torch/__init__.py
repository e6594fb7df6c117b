"""PyTorch models: archives of torch.export, and Python functions that return a module and example inputs."""
