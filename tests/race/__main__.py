import sys

from tests.race.campaign import main

sys.exit(main())
