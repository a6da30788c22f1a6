"""Draw with a small model of Stable Diffusion 1.x's layout in plain torch: U-Net, autoencoder,
sampler.
"""
