from .discovery.apply import apply as apply
from .discovery.discover import discover as discover
from .discovery.discover import find_object as find_object
from .discovery.discover_parts import discover_parts as discover_parts
from .errors import InputError as InputError
from .factorization import NMF as NMF
from .factorization import PCA as PCA
from .factorization import KMeans as KMeans
from .factorization import SemiNMF as SemiNMF
from .images.image_files import video_frames as video_frames
from .images.samples import sample_images as sample_images
from .layers.layer_map import list_layers as list_layers
from .meaning.similarity import compare as compare
from .networks.loading import load_backbone as load_backbone
from .report.load import load as load
from .result import ClassResults as ClassResults
from .result import Result as Result
from .results.concept_bank import ConceptBank as ConceptBank
from .results.concept_bank import load_concepts as load_concepts
from .results.heatmaps import HeatMaps as HeatMaps

__version__: str
