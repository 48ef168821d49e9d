"""Deep Feature Factorization: what a network treats as the same thing across a set of images.

The public names are in ``__init__.pyi``. They are loaded when first used, so that ``import deepff``
does not wait for PyTorch.
"""

import lazy_loader

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
