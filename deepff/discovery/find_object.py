"""The object in the images of a result that was made without it."""

from torch import nn

from deepff.discovery.discover import discover
from deepff.images.decoding import UnreadableImageError
from deepff.networks.backbone import Backbone
from deepff.options import BATCH_SIZE, Device, Engine, Recipe
from deepff.result import Result
from deepff.results.run import Run


def find_object(
    result: Result,
    *,
    model: nn.Module | Backbone | None = None,
    batch_size: int = BATCH_SIZE,
    device: str = Device.AUTO,
    progress: bool = False,
) -> Result:
    """The object in the images of a result, by the recipe "contrast" and with the same network.

    Parameters
    ----------
    result : Result
    model : torch.nn.Module or Backbone, optional
        The network, where it is one's own or its weights were a file.
    batch_size, device, progress
        As for :func:`discover`; a cache that the result has is used again.

    Returns
    -------
    Result
        With one factor; the result itself, or its ``object``, where it is there already and lacks
        no image that can be had.

    Raises
    ------
    InputError
        The network or the images cannot be had any more.

    Examples
    --------
    >>> import deepff
    >>> from skimage import data
    >>> images = [data.chelsea(), data.chelsea()[:, ::-1].copy()]
    >>> result = deepff.discover(images, n_components=3, size=224)
    >>> found = deepff.find_object(result)
    >>> next(found.regions()).names
    ('object',)
    """
    if result.recipe == Recipe.CONTRAST and result.parts_of is None:
        return result
    if result.object is not None and not _has_come_back(result, result.object):
        return result.object
    source = result.sources[0]
    engine = Engine.TORCH if source.engine == Engine.TORCH else Engine.AUTO
    backbone = source.backbone(model=model, device=device, engine=engine)
    return discover(
        [image.item for image in result.images],
        recipe=Recipe.CONTRAST,
        model=backbone,
        size=source.size,
        batch_size=batch_size,
        cache=result.cache,
        amp=source.runs_in_amp(backbone.device),
        stretch=source.stretch,
        progress=progress,
    )


def _has_come_back(result: Run, whole: Run) -> bool:
    """Whether an image that the object lacks, or has at another size, can be had now."""
    held = {(image.name, image.size) for image in whole.images}
    for image in result.images:
        if (image.name, image.size) in held:
            continue
        try:
            height, width = image.read().shape[:2]
        except UnreadableImageError:
            continue
        if (image.name, (height, width)) not in held:
            return True
    return False
