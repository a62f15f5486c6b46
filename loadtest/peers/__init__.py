"""The same prompts on the engines a user could pick instead, each plain and with its own speculation."""
