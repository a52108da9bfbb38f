"""Where flax is: backbones, heads, and the layer for other people's models."""
