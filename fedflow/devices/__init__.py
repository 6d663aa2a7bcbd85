"""Methods of fedflow on clients that share no memory and no data with the server."""
