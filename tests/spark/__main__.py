import sys

from tests.spark.campaign import main

sys.exit(main())
