"""Snapshots that a crash cannot destroy: at any moment the file is the last complete one, or absent."""

import os

import torch


def save(state, path):
    """Write aside, flush to disk, rename over the old one, flush the folder."""
    aside = f"{path}.tmp"  # one name, so that what a crash leaves is overwritten next time; rank 0 alone saves
    with open(aside, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(aside, path)
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load(path):
    """The last complete snapshot, or None when there is none yet. Tensors and plain values only: no code is run."""
    if not os.path.exists(path):
        return None
    return torch.load(path, map_location="cpu", weights_only=True)
