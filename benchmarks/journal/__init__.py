"""The cost of the journal of answers that outlive the server."""
