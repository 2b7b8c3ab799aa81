"""How Java is run where it runs for seconds."""

from typing import Final

#: Options by which what it does is done before it is compiled any better.
JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
