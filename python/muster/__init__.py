"""Muster for Python: see muster.distributed for the backend of torch.distributed."""
