"""What every framework's binding uses: the C library, names, handles, collectives, process sets."""
