"""Data sets that TensorFlow Datasets lacks, written as its builders; importing this registers them
by name.

`python -c "import tensorflow_datasets as tfds, heteroscedastic.data.builders; tfds.builder(NAME,
data_dir=DIR).download_and_prepare()"` prepares one; where files must be put by hand, it says which
and where.
"""

from heteroscedastic.data.builders.coco_labels import CocoLabels
from heteroscedastic.data.builders.imagenet21k import Imagenet21k
from heteroscedastic.data.builders.imagenet2012_boxes import Imagenet2012Boxes
from heteroscedastic.data.builders.webvision import Webvision

__all__ = ["CocoLabels", "Imagenet21k", "Imagenet2012Boxes", "Webvision"]
