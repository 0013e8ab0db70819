"""Who is served next after a commit, and what gives way when there is too much to do."""
