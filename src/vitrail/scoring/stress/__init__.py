"""Where a model breaks: pictures with parts hidden, shuffled, corrupted, restyled, attacked or turned."""
