"""The result that is being labeled, which is there already or is being made."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Thread

from deepff.app.imports import import_labels, read_labels
from deepff.app.label_content import MAX_NAME_LENGTH
from deepff.app.label_file import LabelStore, relearn
from deepff.app.labels import Factor, Labels
from deepff.app.lessons import (
    Lesson,
    Teaching,
    classes_to_teach,
    known_to_teach,
    teacher_masks,
    write_lesson,
)
from deepff.app.masks import Masks, as_one
from deepff.app.pictures import IN_VIEW, Pictures
from deepff.app.segmenter import Segmenter
from deepff.errors import InputError
from deepff.images.image_files import ImageFile, find_images
from deepff.images.image_set import Images, check_readable, warn_unreadable
from deepff.options import Device
from deepff.regions.part_names import RESERVED
from deepff.report.load import load_result
from deepff.report.save import OBJECT, check_output_folder
from deepff.result import Result
from deepff.results.concept_bank import FILE as BANK
from deepff.results.concept_bank import load_concepts
from deepff.runtime.outputs import read_manifest
from deepff.runtime.progress import listening


class Workspace:
    """A folder with a result, its labels, pictures and masks, once it is `ready`."""

    store: LabelStore
    pictures: Pictures
    masks: Masks  # at the images' sizes
    segmenter: Segmenter | None = None  # answers clicks in place of superpixels

    def __init__(self, folder: str | Path, labels: Path | None = None) -> None:
        self.folder, self._labels = Path(folder), labels
        self.ready = False
        # What is being done, for people, and how many images went through the network.
        self.stage, self.done, self.total = "Opening the result", 0, 0
        self.error: str | None = None  # why there will be no result
        self.notice = ""  # what a page that is opened says first
        self.teaching: Teaching | None = None
        self._prefetcher = ThreadPoolExecutor(1)
        self._prefetching: Future[None] | None = None

    @property
    def result(self) -> Result:
        """The result."""
        return self.pictures.result

    def open(self, photos: Images | None = None) -> None:
        """Open the folder's result, with its photographs where they are now."""
        result = with_histograms(load_result(self.folder, photos), self.folder)
        unreadable = {file.name: file.reason for file in result.skipped}
        warn_unreadable(unreadable, "left out, because they cannot be read")
        self.store = LabelStore(self.folder, result, suggestions(result))
        self.pictures, self.masks = Pictures(result), Masks(result)
        # What first pictures need takes seconds to import, and a first filter to work out. In a
        # thread it would hold up the page that is being opened.
        if self._labels is not None:
            self.notice = f"{self.notice} {import_labels(self.store, result, self._labels)}".strip()
        labels = self.store.labels
        self.pictures.warm(labels, self.pictures.order(labels.settings.k)[:IN_VIEW])
        self.ready = True

    def prefetch(self, labels: Labels, indices: Sequence[int]) -> None:
        """Make in a thread what pictures of images will need, in place of an earlier request."""
        if self._prefetching is not None:
            self._prefetching.cancel()
        self._prefetching = self._prefetcher.submit(self.pictures.warm, labels, indices)

    def teach(self, labels: Labels) -> None:
        """Work out in a thread what the masks that somebody looked at teach the set."""
        result = self.result
        classes = classes_to_teach(result, labels)
        masks = teacher_masks(labels, result.names, classes)
        teaching = self.teaching = Teaching(len(result.names), len(masks), classes)

        def tell(stage: str, done: int, total: int) -> None:
            if stage == "lesson":
                teaching.done, teaching.total = done, total

        def work_out() -> None:
            from deepff.discovery.teaching import classified, teach

            run, likely, layers = known_to_teach(result, labels, classes)
            with listening(tell):
                classifier = teach(run, masks, max(1, len(classes)), likely, layers)
                maps = classified(classifier, [image.item for image in run.images])
            lesson = write_lesson(Lesson(maps, classifier), self.folder)
            taught = replace(teaching, lesson=lesson).taught(labels)
            teaching.agreements = self.pictures.changes(labels, taught)
            teaching.lesson = lesson

        _in_thread(work_out, teaching, "lesson")

    def discover(
        self, images: Sequence[ImageFile], wanted: Sequence[int] | None, device: str
    ) -> None:
        """Factorize images into the folder in a thread, then open it. Without a number of factors
        that is wanted, several kinds of things are the factors."""
        counts = range(1, 7) if wanted is None else wanted
        self.stage, self.total = "Loading the network", len(images)

        def tell(stage: str, done: int, total: int) -> None:
            if stage == "network":
                self.done = done
                if done == total:
                    self.stage = "Factorizing"

        def run() -> None:
            from deepff.discovery.discover import discover, find_object
            from deepff.networks.loading import load_backbone

            backbone = load_backbone(device=device)
            self.stage = "Reading the images"
            with listening(tell):
                result = discover(images, counts, model=backbone)
                self.stage, self.done = "Finding the object", 0
                result.object = find_object(result, model=backbone)
            if len(result.object.of_kinds) > 1 and wanted is None:
                result = result.object
            self.stage, self.total = "Writing the result", 0
            result.save(self.folder)
            self.open()

        _in_thread(run, self, "run")

    def extend(self, result: Result, images: Sequence[ImageFile], device: str) -> None:
        """Add images to the folder's result in a thread, then open it."""
        self.stage, self.total = f"Reading {len(images)} new images", 0

        def run() -> None:
            from deepff.discovery.apply import extend

            try:
                extend(result, images, device=device).save(self.folder)
                relearn(self.folder, result, images)
            except InputError as error:
                # The result as it was can still be labeled.
                self.notice = f"{len(images)} new images were not added: {error}"
            self.open()

        _in_thread(run, self, "run")


def with_histograms(result: Result, folder: Path) -> Result:
    """A saved result whose thresholds are read off the histograms that were saved with it."""
    whole = result.object
    if whole is not None:
        whole = as_one(with_histograms(whole, folder / OBJECT))
    if result.applied is not None or result.parts_of is not None:
        return replace(result, object=whole)
    return replace(result, object=whole, histograms=load_concepts(folder / BANK).histograms)


def suggestions(result: Result) -> dict[tuple[int, int], Factor]:
    """What the network calls factors, by k and number. Those without a name are background; of
    kinds of objects, nothing is said of them."""
    return {
        (k, number): Factor(name, name != "", suggested=True)
        for k, factorization in result.factorizations.items()
        if factorization.classes is not None and any(factorization.classes.names)
        for number, name in enumerate(map(_suggested_name, factorization.classes.names))
        if name or not result.is_object
    }


def _suggested_name(name: str | None) -> str:
    """A network's name of a class as a person may give it; "" where there is none."""
    words = " ".join((name or "").split())
    shown = "".join(filter(str.isprintable, words))[:MAX_NAME_LENGTH].strip()
    return "" if shown.casefold() in RESERVED else shown


def _in_thread(work: Callable[[], None], to: Workspace | Teaching, what: str) -> None:
    """Begin the work; what goes wrong is kept for the page, which says why nothing came of it."""

    def attempt() -> None:
        try:
            work()
        except (InputError, OSError) as error:
            to.error = str(error)
        except BaseException:
            to.error = f"the {what} failed; see the reason in the terminal"
            raise

    Thread(target=attempt, daemon=True).start()


def open_workspace(
    sources: Sequence[str | Path],
    out: Path | None,
    counts: Sequence[int] | None,
    device: str = Device.AUTO,
    photos: Images | None = None,
    labels: Path | None = None,
) -> Workspace:
    """Open a result, or begin one of images in a thread; its k are `counts`, by default 1 to 6.
    `sources` are the folder of a result, whose photographs may be in `photos` now, or images whose
    result goes to `out`. A result there gets the images that it lacks. `labels` exist already:
    :mod:`deepff.app.imports`."""
    if labels is not None:
        read_labels(labels)  # before anything takes its time
    if len(sources) == 1 and read_manifest(Path(sources[0])) is not None:
        if out is not None or counts is not None:
            raise InputError(
                f"{sources[0]} holds a result already; -k and --out are for a new one of images"
            )
        workspace = Workspace(sources[0], labels)
        workspace.open(photos)
        return workspace
    images = find_images(sources)
    workspace = Workspace(Path("result") if out is None else out, labels)
    if (read_manifest(workspace.folder) or {}).get("status") == "complete":
        result = with_histograms(load_result(workspace.folder), workspace.folder)
        old = {*result.names, *(skipped.name for skipped in result.skipped)}
        new = [image for image in images if image.name not in old]
        if len(images) - len(new) < len(old):
            raise InputError(
                f"{workspace.folder} holds a result of other images; name another folder with "
                f"--out, or open that one with `deepff label {workspace.folder}`"
            )
        if counts is not None and set(counts) != set(result.factorizations):
            ks = ", ".join(map(str, result.factorizations))
            raise InputError(
                f"{workspace.folder} holds a result with k = {ks}; leave -k out to open it, or "
                "name another folder with --out"
            )
        if new:
            workspace.extend(result, new, device)
        else:
            workspace.open()
        return workspace
    check_readable(images)
    check_output_folder(workspace.folder)
    workspace.discover(images, counts, device)
    return workspace
