"""Megatron, Shar, LIT and WebDataset: formats of training datasets. The core finds them by name."""
