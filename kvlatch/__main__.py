"""``python -m kvlatch``: the same as the command ``kvlatch``."""

from kvlatch.commands.main import main

if __name__ == "__main__":
    main()
