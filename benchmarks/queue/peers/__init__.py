"""The contenders, in the order of the table's columns."""

from __future__ import annotations

from benchmarks.queue.peers.base import Mode, Peer, Setup
from benchmarks.queue.peers.everlog import EverlogPeer
from benchmarks.queue.peers.iceoryx2 import Iceoryx2Peer
from benchmarks.queue.peers.pipe import PipePeer
from benchmarks.queue.peers.redis import RedisPeer
from benchmarks.queue.peers.zmq import ZmqPeer

PEERS: dict[str, Peer] = {
    peer.name: peer for peer in (EverlogPeer(), Iceoryx2Peer(), ZmqPeer(), PipePeer(), RedisPeer())
}

__all__ = ["PEERS", "Mode", "Peer", "Setup"]
