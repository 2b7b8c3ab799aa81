import sys

from tests.localchanges.campaign import main

sys.exit(main())
