"""Our engines keep the contract that engines of other packages are tested by."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from cerebro_db.testing.engines import EngineContract


class TestJax(EngineContract):
    engine = "jax"


@pytest.mark.tensorflow
class TestTensorFlow(EngineContract):
    engine = "tensorflow"


@pytest.mark.skipif(find_spec("torch") is None, reason="the optional package torch is not installed")
class TestTorch(EngineContract):
    engine = "torch"
