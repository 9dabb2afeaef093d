"""Merkle trees as RFC 6962, section 2.1, defines them, built from a stream of leaves with memory for its height only.

A leaf's hash is SHA-256 of a zero byte and the leaf, a node's that of a one byte and its two children, so that neither
can be passed off as the other. https://www.rfc-editor.org/rfc/rfc6962#section-2.1
"""

from collections.abc import Iterable
from hashlib import sha256

EMPTY = sha256().digest()
"""The root of a tree without leaves."""


def leaf_hash(leaf: bytes) -> bytes:
    """The hash of one leaf."""
    return sha256(b"\0" + leaf).digest()


class Tree:
    """A tree that grows to the right."""

    __slots__ = ("_peaks", "leaves")

    def __init__(self) -> None:
        self.leaves = 0
        self._peaks: list[bytes] = []

    def add(self, leaf: bytes) -> None:
        """Appends a leaf."""
        self.add_subtree(leaf_hash(leaf))

    def add_subtree(self, root: bytes) -> None:
        """Appends a leaf by its hash, or the root of a full subtree where all leaves are such roots."""
        number = self.leaves
        while number & 1:
            root = _node(self._peaks.pop(), root)
            number >>= 1
        self._peaks.append(root)
        self.leaves += 1

    def root(self) -> bytes:
        """The root over all leaves so far: their full subtrees, joined from the right."""
        if not self._peaks:
            return EMPTY
        root = self._peaks[-1]
        for peak in reversed(self._peaks[:-1]):
            root = _node(peak, root)
        return root


def root_of_subtrees(roots: Iterable[bytes]) -> bytes:
    """The root over subtrees of equal size, a power of two; only the last may have fewer leaves."""
    tree = Tree()
    for root in roots:
        tree.add_subtree(root)
    return tree.root()


def _node(left: bytes, right: bytes) -> bytes:
    return sha256(b"\1" + left + right).digest()
