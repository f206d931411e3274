"""``python -m labelgap`` is the command ``labelgap``."""

from labelgap.cli.main import main

if __name__ == "__main__":
    main()
