"""The way to an API server: typed verbs (`client`), who carries them (`transport`, `https`), shared views of it (`cache`)."""
