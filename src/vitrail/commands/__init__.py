"""One file for each command: it parses, calls one function of the library, and prints."""
