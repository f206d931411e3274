"""Tables of chest radiographs: 1, 0, −1 for uncertain, and blank (CheXpert, MIMIC-CXR)."""

__all__: list[str] = []
