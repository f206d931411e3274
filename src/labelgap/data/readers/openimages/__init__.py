"""Open Images V3 and V4 to V7 in their own layouts."""

from labelgap.data.readers.openimages.dataset import load_openimages
from labelgap.data.readers.openimages.files import OPENIMAGES_LAYOUT

__all__ = ["OPENIMAGES_LAYOUT", "load_openimages"]
