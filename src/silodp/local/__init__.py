"""Training inside a hospital: flat parameters, the trainer, augmentation, DP-SGD steps."""
