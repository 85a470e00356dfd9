"""Authorization and admission of nodes, which depend on the pods that run on them."""
