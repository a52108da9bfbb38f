"""The kinds of question: `config.task` names one of these classes, each of which is a `Task`."""

from heteroscedastic.tasks import detection as _detection
from heteroscedastic.tasks import multiclass as _multiclass
from heteroscedastic.tasks import multilabel as _multilabel
from heteroscedastic.tasks import one_vs_rest as _one_vs_rest
from heteroscedastic.tasks import translation as _translation

# What config.task may name.
__all__ = ["detection", "multiclass", "multilabel", "one_vs_rest", "translation"]

detection = _detection.Detection
multiclass = _multiclass.Multiclass
multilabel = _multilabel.Multilabel
one_vs_rest = _one_vs_rest.OneVsRest
translation = _translation.Translation
