"""KV events as a router reads them: over pyzmq, with msgspec structs that have the names and types of vLLM's.

Each event is checked against what the replica's answers say: the tokens of a prompt, and what a repeat finds cached.
"""

import contextlib
import json
import sys
import urllib.request

import msgspec
import zmq

from checks import MODEL_NAME, holds, run_checks, same
from fleet import (BLOCK_TOKENS, PATIENCE_SECONDS, EventReplica, cached_tokens, complete, document, request_to,
                   whole_blocks)

NUM_DOCUMENTS = 8  # more than the small cache of check_removals_are_told has room for


class Event(msgspec.Struct, omit_defaults=True, tag=True, forbid_unknown_fields=True):
    """A map with its name as `type`, as vLLM's events are since 0.24."""


class BlockStored(Event):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(Event):
    block_hashes: list[int]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(Event):
    pass


class Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


@contextlib.contextmanager
def socket_to(kind, port):
    context = zmq.Context()
    socket = context.socket(kind)
    socket.linger = 0
    if kind == zmq.SUB:
        socket.subscribe(b"")
    monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
    socket.connect(f"tcp://127.0.0.1:{port}")
    holds(monitor.poll(1000 * PATIENCE_SECONDS), "the replica accepts the connection")
    try:
        yield socket
    finally:
        socket.disable_monitor()
        context.destroy()


def received(socket):
    holds(socket.poll(1000 * PATIENCE_SECONDS), "a message comes")
    return socket.recv_multipart()


class Reader:
    """What a router would know of a replica."""

    def __init__(self, socket, topic=b""):
        self.socket, self.topic, self.next_number, self.stored, self.held = socket, topic, 0, {}, set()

    def read(self, number, payload):
        same(number, self.next_number, "number of the message")
        self.next_number += 1
        for event in msgspec.msgpack.decode(payload, type=Batch).events:
            if isinstance(event, BlockStored):
                self.add(event)
            elif isinstance(event, BlockRemoved):
                holds(set(event.block_hashes) <= self.held, "what is removed was stored")
                self.held -= set(event.block_hashes)
            else:
                self.held.clear()

    def add(self, event):
        same(event.block_size, BLOCK_TOKENS, "tokens of a block")
        same(len(event.token_ids), BLOCK_TOKENS * len(event.block_hashes), "tokens of an event")
        same(event.medium, "CPU", "medium of blocks in host memory")
        parent = event.parent_block_hash
        for i, name in enumerate(event.block_hashes):
            holds(0 <= name < 2 ** 64, f"{name} has 64 bits")
            tokens = event.token_ids[BLOCK_TOKENS * i:BLOCK_TOKENS * (i + 1)]
            same(self.stored.setdefault(name, (parent, tokens)), (parent, tokens), "what a hash stands for")
            parent = name
        self.held |= set(event.block_hashes)

    def receive_until(self, condition):
        while not condition():
            topic, number, payload = received(self.socket)
            same(topic, self.topic, "topic")
            self.read(int.from_bytes(number, "big"), payload)

    def chain(self, tokens):
        """The hashes of the whole blocks of a prompt, by following parents; the longest held."""
        names, parent = [], None
        children = {(above, tuple(ids)): name for name, (above, ids) in self.stored.items() if name in self.held}
        for begin in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            parent = children.get((parent, tuple(tokens[begin:begin + BLOCK_TOKENS])))
            if parent is None:
                break
            names.append(parent)
        return names


def tokens_of(replica, text):
    body = {"model": MODEL_NAME, "prompt": text}
    with urllib.request.urlopen(request_to(f"{replica.url}/tokenize", body), timeout=PATIENCE_SECONDS) as answer:
        return json.loads(answer.read())["tokens"]


def chain_of(replica, text, topic=b""):
    """The hashes that the replica tells of when it is asked about this text."""
    with socket_to(zmq.SUB, replica.events_port) as socket:
        reader, tokens = Reader(socket, topic), tokens_of(replica, text)
        num_blocks = whole_blocks(complete(replica.url, text)) // BLOCK_TOKENS
        holds(num_blocks > 2, f"the text has several blocks: {num_blocks}")
        reader.receive_until(lambda: len(reader.chain(tokens)) >= num_blocks)
        return reader.chain(tokens)


def check_two_replicas_give_blocks_the_same_names():
    text, topic = document("the same"), "kv@pod@needle"
    with EventReplica() as first, EventReplica("--kv-events-topic", topic) as second:
        chain = chain_of(first, text)
        same(chain_of(second, text, topic.encode()), chain, "hashes of the other replica")
        print(f"  {len(chain)} blocks")


def check_missed_messages_come_again():
    """Whoever connects late asks for all messages from a number on; after the last comes the number -1."""
    text = document("missed")
    with EventReplica() as replica:
        chain = chain_of(replica, text)
        with socket_to(zmq.DEALER, replica.replay_port) as socket:
            for first in (0, 1):
                reader, ends = Reader(None), False
                reader.next_number = first
                socket.send_multipart([b"", first.to_bytes(8, "big")])
                while not ends:
                    empty, number, payload = received(socket)
                    same(empty, b"", "frame before the number")
                    ends = int.from_bytes(number, "big", signed=True) == -1
                    if ends:
                        same(payload, b"", "payload of the end")
                    else:
                        reader.read(int.from_bytes(number, "big"), payload)
                holds(reader.next_number >= 1, f"messages come from {first} on")
                if first == 0:
                    same(reader.chain(tokens_of(replica, text)), chain, "hashes that come again")
        restarted_after(replica, text, chain)


def restarted_after(replica, text, chain):
    """Numbers begin with 0 again, by which routers know that nothing of before is there; names stay."""
    replica.process.kill()
    replica.process.wait()
    with EventReplica(in_place_of=replica) as again:
        same(chain_of(again, text), chain, "hashes after a restart")


def check_removals_are_told():
    """In a cache with room for few documents, what events say is held is what a repeat finds."""
    options = ["--max-model-len", "2048"]
    with EventReplica(*options, kv_bytes="16M") as replica, socket_to(zmq.SUB, replica.events_port) as socket:
        reader, removed = Reader(socket), 0
        for _ in range(2):
            for name in map(str, range(NUM_DOCUMENTS)):
                tokens = tokens_of(replica, document(name))
                num_told = len(reader.chain(tokens))
                answer = complete(replica.url, document(name))
                most = whole_blocks(answer) // BLOCK_TOKENS
                same(cached_tokens(answer) // BLOCK_TOKENS, min(num_told, most), "blocks that were found")
                reader.receive_until(lambda: len(reader.chain(tokens)) >= most)
            removed = len(reader.stored) - len(reader.held)
        print(f"  {len(reader.stored)} blocks stored, {len(reader.held)} held at the end")
        holds(removed > 0, "some were removed")


if __name__ == "__main__":
    sys.exit(run_checks(globals()))
