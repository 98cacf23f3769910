"""What every binding stands on: the C library, names, handles, collectives, process sets."""
