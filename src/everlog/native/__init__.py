"""The compiled core: Python decides, C moves bytes. Each module has a `.pyi` beside it."""
