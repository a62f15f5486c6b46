"""Early exit: how sure an inner layer is, how well that separates right tokens from wrong ones, and thresholds with a stated guarantee."""
