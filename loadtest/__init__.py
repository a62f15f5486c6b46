"""Load on the served pipeline, and the field it is compared with."""
