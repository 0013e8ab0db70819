"""Which dirty topic is served next (`scheduler`), in turns (`delivery`), and under overload (`governor`)."""
