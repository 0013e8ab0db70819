"""Venues: importers of market data files, and a simulated venue of our own.

Each format is one small module behind `everlog.market.venues.interface.Importer`. What all of them
share is elsewhere: opening compressed files (`opening`), parsing rows (`csv_blocks`), packing price
levels (`l2_events`), ledger and queue (`everlog.market.ledger`, `everlog.market.importing`).
"""
