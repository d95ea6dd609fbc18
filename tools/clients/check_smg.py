"""smg, a gateway from PyPI, with deploy/routers/smg.sh before two replicas: by the texts that each was asked."""

import sys

from checks import run_checks
from fleet import Replica, Router, complete, document, free_port, repeats_go_home, shipped_command


def smg(replicas):
    port = free_port()
    command = shipped_command("smg.sh", {"--port 8080": f"--port {port} --prometheus-port {free_port()}",
                                         "--host 0.0.0.0": "--host 127.0.0.1"} |
                              {f"sluice-{i}:8000": f"127.0.0.1:{replica.port}" for i, replica in enumerate(replicas)})
    return Router(command, port, "/readiness")


def check_repeats_go_home():
    with Replica() as first, Replica() as second, smg([first, second]) as router:
        repeats_go_home([first, second], lambda name: complete(router.url, document(name)))


if __name__ == "__main__":
    sys.exit(run_checks(globals()))
