"""``python -m labelgap`` is the command ``labelgap``."""

from labelgap.cli.main import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
