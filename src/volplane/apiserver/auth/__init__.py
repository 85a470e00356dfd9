"""Authentication (credentials to a user), authorization (may this user do it) and admission plugins."""
