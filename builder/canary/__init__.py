"""A canary from its start to its end: what both versions show, the verdict, and the promotion or the way back."""
