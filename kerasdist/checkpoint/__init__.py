"""What a training must remember to go on exactly: its state, the file that holds it, the place in the data."""
