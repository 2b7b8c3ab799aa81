"""``script/pictures``."""

import sys

from tests.pictures.taking import main

if __name__ == "__main__":
    sys.exit(main())
