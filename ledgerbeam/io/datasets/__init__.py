"""Dataset formats: Megatron, Shar, LIT and WebDataset."""
