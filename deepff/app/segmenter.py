"""Networks of the SAM family (transformers) that answer clicks in place of superpixels."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from deepff.errors import InputError, first_line
from deepff.networks.available import check_installed
from deepff.networks.loading import select_device
from deepff.options import Device

# The logits that the network gets for the mask before.
_CERTAINTY = 10.0

Point = tuple[float, float]  # (x, y) as shares of an image's width and height, in [0, 1]


class Segmenter:
    """A network for mask generation from the hub (``hf/OWNER/NAME``), or from a folder of one."""

    def __init__(self, name: str, device: str = Device.AUTO) -> None:
        check_installed("hf", name)
        from transformers import AutoModelForMaskGeneration, AutoProcessor

        try:
            self._network = AutoModelForMaskGeneration.from_pretrained(name.removeprefix("hf/"))
            self._processor = AutoProcessor.from_pretrained(name.removeprefix("hf/"))
        except (OSError, ValueError) as error:
            raise InputError(
                f"{name} is no segmenter that can be had ({first_line(error)}); name a network of "
                "the SAM family as hf/OWNER/NAME, or a folder that one was saved in"
            ) from error
        self._network.eval().to(select_device(device))
        self._photo: np.ndarray | None = None
        self._embeddings: Tensor | list[Tensor] | None = None

    @torch.inference_mode()
    def __call__(
        self,
        photo: np.ndarray,
        points: Sequence[Point],
        are_inside: Sequence[bool],
        box: tuple[Point, Point] | None,
        before: np.ndarray,
    ) -> np.ndarray:
        """The mask that points inside and outside of it, and a box, mark in a photograph: (h, w)
        bool. ``before`` is the mask so far."""
        pixels = np.array([photo.shape[1], photo.shape[0]])
        prompts = {}
        if points:
            prompts["input_points"] = [[(np.array(points) * pixels).tolist()]]
            prompts["input_labels"] = [[[int(inside) for inside in are_inside]]]
        if box is not None:
            corners = np.sort(np.array(box) * pixels, 0)
            prompts["input_boxes"] = [[corners.ravel().tolist()]]
        inputs = self._processor(
            photo, segmentation_maps=before.astype(np.uint8), return_tensors="pt", **prompts
        )
        device = self._network.device
        if photo is not self._photo:  # clicks on one photograph share what takes longest
            values = inputs["pixel_values"].to(device)
            self._embeddings, self._photo = self._network.get_image_embeddings(values), photo
        asked = {name: inputs[name].to(device) for name in prompts}
        asked |= {name: asked[name].float() for name in asked if name != "input_labels"}
        if before.any():
            asked["input_masks"] = (2 * inputs["labels"][:, None].to(device) - 1) * _CERTAINTY
        outputs = self._network(image_embeddings=self._embeddings, **asked)
        sizes = [inputs[n] for n in ("original_sizes", "reshaped_input_sizes") if n in inputs]
        masks = self._processor.post_process_masks(outputs.pred_masks.cpu(), *sizes)[0][0]
        return masks[int(outputs.iou_scores[0, 0].argmax())].numpy()
