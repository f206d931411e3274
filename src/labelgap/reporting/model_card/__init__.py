"""The model card of a run: what to know before using its weights."""

from labelgap.reporting.model_card.card import MODEL_CARD_FILE, render_model_card, write_model_card

__all__ = ["MODEL_CARD_FILE", "render_model_card", "write_model_card"]
