"""Pages to look at: one HTML file each, complete by itself, of one look."""
