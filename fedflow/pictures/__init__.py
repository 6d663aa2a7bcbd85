"""Every picture: of partitions, of their comparison, of clusters, and of accuracy in the report."""
