"""What factors are called in pictures and pages."""

from deepff.regions.part_names import factor_names
from deepff.results.factorization import Factorization


def captions(found: Factorization) -> list[str]:
    """ "factor 0: African elephant", or "factor 3" where the network has no name for it."""
    plain = factor_names(len(found.components))
    names = [None] * len(plain) if found.classes is None else found.classes.names
    return [
        own if name is None else f"{own}: {name}" for own, name in zip(plain, names, strict=True)
    ]
