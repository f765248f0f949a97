import doctest
import importlib
import pkgutil

import pytest

import traces

MODULES = [module.name for module in pkgutil.walk_packages(traces.__path__, "traces.")]


@pytest.mark.parametrize("name", MODULES)
def test_module__its_examples__run_as_written(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
