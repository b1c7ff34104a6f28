"""How was this process started? Each launcher's environment, read in one place."""
