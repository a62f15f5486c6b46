"""The code behind the Triton models; a version folder holds only a model.py of one line that imports it."""
