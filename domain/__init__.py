"""The rules: keys, events, the Lock aggregate, errors, policy. No input or output."""
