import sys

from tests.writers.campaign import main

sys.exit(main())
