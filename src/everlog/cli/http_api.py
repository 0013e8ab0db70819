"""The client that commands use; it lives in `everlog.client`."""

from everlog.client.http_api import *  # noqa: F403
