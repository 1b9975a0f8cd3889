"""`python -m quantfleet_worker`: a worker pod's command."""

import sys

from quantfleet_worker.pod import main

if __name__ == "__main__":
    sys.exit(main())
