"""`python -m kiln.scons.farm.local N`: a scheduler and N workers on this machine, for `cluster=local:N`.

Prints the scheduler's and the dashboard's address on one line, and ends when its standard input does, so
never later than the build that started it.
"""

from __future__ import annotations

import logging
import sys

from kiln.scratch import scratch_folder


def main() -> int:
    """Serve until standard input is closed."""
    import dask
    from distributed import LocalCluster

    # A worker that ends because this process ends is not a fault.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    with scratch_folder("cluster") as folder:
        dask.config.set({"temporary-directory": str(folder)})
        with LocalCluster(
            n_workers=int(sys.argv[1]),
            threads_per_worker=1,
            memory_limit=None,  # stages limit their own memory
            dashboard_address="127.0.0.1:0",
            silence_logs=logging.CRITICAL,
        ) as cluster:
            print(cluster.scheduler_address, cluster.dashboard_link, flush=True)
            sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
