"""What is wrong with a set of pictures, before anything is trained on it."""
