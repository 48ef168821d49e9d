"""A run's network, opened where it is not open, and the run's images as the network takes them."""

from collections.abc import Iterator, Sequence

from torch import Tensor

from deepff.errors import InputError
from deepff.images.decoding import UnreadableImageError
from deepff.images.image_set import read_origin, warn_unreadable
from deepff.images.reading import resize, resized_shape
from deepff.layers.later import OpenLayer
from deepff.layers.layer_map import map_layers
from deepff.networks.backbone import Backbone, normalized
from deepff.results.run import Run
from deepff.runtime.progress import track


def check_directions(run: Run) -> None:
    """Raise InputError where the components are no directions of one layer's activations."""
    if len(run.sources) > 1:
        raise InputError(
            "several layers were fused, so a factor is not a direction in one layer's activations"
        )
    if run.channel_weights is not None:
        raise InputError(
            "the channels were weighted, so a factor is not a direction in the layer's activations"
        )
    if run.parts_of is not None:
        raise InputError(
            "the factors are parts of the object, but the network's classes are whole objects"
        )


def opened_layers(run: Run, backbone: Backbone | None = None) -> tuple[OpenLayer, ...]:
    """The run's network and layers, or those of a backbone; opened by name where none is open.
    Raises InputError where the network cannot be had, or has other weights than the run's."""
    if run.opened and backbone is None:
        return run.opened
    network = run.sources[0].backbone(model=backbone)
    return tuple(OpenLayer(network, x.resolved(map_layers(network, x.size))) for x in run.sources)


def opened_layer(run: Run) -> OpenLayer:
    """The coarsest of :func:`opened_layers`, which is the one layer of most runs. At the module
    that makes its map, so that another map reaches all that follows."""
    return max(opened_layers(run), key=lambda opened: opened.layer.stride)


def network_input(run: Run, opened: OpenLayer, index: int) -> Tensor:
    """An image of the run as the network takes it: (1, channels, H, W), normalized, on its device.
    Raises UnreadableImageError where it cannot be read any more."""
    image, source = run.images[index], run.sources[0]
    fixed = opened.layer.input_size
    shape = (fixed, fixed) if fixed else resized_shape(*image.size, source.size, source.multiple)
    picture = read_origin(image.unchanged_origin(), max(shape), image.stretch)
    pixels = resize(picture.pixels, shape, opened.backbone.interpolation)
    return normalized(opened.backbone, pixels[None])


def network_inputs(
    run: Run, opened: OpenLayer, indices: Sequence[int], stage: str, progress: bool, why: str = ""
) -> Iterator[tuple[int, Tensor]]:
    """The index and the :func:`network_input` of each image that can still be read. Warns of the
    others. InputError where none can be; ``why`` is what it says of their use."""
    unread: dict[str, str] = {}
    with track(stage, len(indices), enabled=progress) as advance:
        for index in indices:
            try:
                image = network_input(run, opened, index)
            except UnreadableImageError as error:
                unread[run.names[index]] = str(error)
            else:
                yield index, image
            advance(1)
    if len(unread) == len(indices):
        raise InputError(f"none of the images can be read any more{why}; say where they are now")
    warn_unreadable(unread, f"left out of the {stage}")
