"""Translation: one word of the target's vocabulary for each token, under a softmax."""

from flax import linen as nn

from heteroscedastic.models.transformer import Translator
from heteroscedastic.tasks.multiclass import Multiclass


class Translation(Multiclass):
    """The next word of K is asked at each token of the reference; see `Task`.

    A token is an example: labels, weights and ids have the axes [row, token], and every metric is
    over the tokens, the ends of sentences included (reading D16).
    """

    name: str = "translation"

    def model(self, backbone: nn.Module, head: nn.Module) -> Translator:
        """A transformer and a head whose kernel is the embedding of the decoder.

        Raises:
          ValueError: the kernel of the head is no embedding of words.
        """
        for setting in ("hidden_width", "zero_start"):
            if getattr(head, setting, False):
                raise ValueError(
                    f"config.head.{setting} is {getattr(head, setting)}, but in translation the"
                    f" kernel of the head embeds the words of the decoder; set it to"
                    f" {type(getattr(head, setting))()}."
                )
        return Translator(backbone=backbone, head=head.clone(use_bias=False))
