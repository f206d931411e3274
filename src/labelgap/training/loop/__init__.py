"""The training loop: ``trainer`` has the epochs of any run, ``network_trainer`` the steps of a network, and
``linear_trainer`` those of a head on fixed features."""

__all__: list[str] = []
