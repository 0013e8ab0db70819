"""Venues: importers of market data files, and a simulated venue of our own.

Each format is one module behind `everlog.market.venues.interface.Importer`. They share the opening of
compressed files (`archives`), the detection of formats (`sniffing`), the parsing of rows (`csv_blocks`) and
the packing of price levels (`l2_events`). `everlog.market.importing` owns the ledger and the queue.
"""
