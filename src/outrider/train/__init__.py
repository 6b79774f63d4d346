"""Training drafters. A method is one file here, one in `heads` and one in `drafters`; the decode loop is handed in."""
