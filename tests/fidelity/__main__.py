import sys

from tests.fidelity.campaign import main

sys.exit(main())
