"""The datasets of the queue that EVERLOG_QUEUE names."""

import os

from everlog.pipeline.declarative import market_pipeline

market_pipeline(os.environ["EVERLOG_QUEUE"])
