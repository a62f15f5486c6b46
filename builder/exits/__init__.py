"""Early exit: heads that make inner layers speak, trained on the target's own text, and thresholds calibrated on it."""
