"""Which episodes of a dataset are for training, which for early stopping, which for the final measure.

Labelling and training both ask here: pairs are drawn inside one part, so that none has to be thrown away later.
"""

import numpy as np
from numpy.typing import NDArray

from bkrl.core.seeds import generator

TRAIN, VALIDATION, TEST = 0, 1, 2
_BLOCK = (TRAIN,) * 8 + (VALIDATION, TEST)


def partition(episodes: NDArray[np.integer], seed: int = 0) -> NDArray[np.int64]:
    """TRAIN, VALIDATION or TEST for episode ids, by the id alone.

    Of each ten consecutive ids eight are for training, one for validation and one for testing, which ones is random:
    every part covers the whole of the collection, and ten episodes are enough for all three.
    """
    ids = np.asarray(episodes, np.int64)
    blocks, which = np.unique(ids // len(_BLOCK), return_inverse=True)
    parts = np.array([generator(seed, "partition", int(block)).permutation(_BLOCK) for block in blocks], np.int64)
    flat = parts.reshape(-1, len(_BLOCK))[which.ravel(), (ids % len(_BLOCK)).ravel()]
    return flat.reshape(ids.shape)
