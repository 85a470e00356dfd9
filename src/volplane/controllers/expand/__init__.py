"""Claims that request more storage: who has to expand their volumes."""
