"""What a trtllm build will be made of, as plain data: names by version, flags, parameters and arguments; and the rules about them."""
