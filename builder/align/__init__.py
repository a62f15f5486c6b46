"""Draft alignment: the INT4 draft learns to imitate its target on text the target wrote itself."""
