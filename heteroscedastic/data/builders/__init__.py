"""Builders of data sets that TensorFlow Datasets lacks. This prepares a set:

    import tensorflow_datasets as tfds
    import heteroscedastic.data.builders

    tfds.builder(NAME, data_dir=DIR).download_and_prepare()

If files must be downloaded manually, the error names them and their directory. Importing
this module registers its builders.
"""

from heteroscedastic.data.builders.coco_labels import CocoLabels
from heteroscedastic.data.builders.imagenet21k import Imagenet21k
from heteroscedastic.data.builders.imagenet2012_boxes import Imagenet2012Boxes
from heteroscedastic.data.builders.inaturalist2019 import Inaturalist2019
from heteroscedastic.data.builders.webvision import Webvision

__all__ = ["CocoLabels", "Imagenet21k", "Imagenet2012Boxes", "Inaturalist2019", "Webvision"]
