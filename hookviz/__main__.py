"""``python -m hookviz`` is the same program as ``hookviz``."""

from hookviz.cli import main

if __name__ == "__main__":
    main()
