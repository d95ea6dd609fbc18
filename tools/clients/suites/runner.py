"""Runs pytest over a suite from PyPI, for check_*_suite.py.

SUITES=short runs the part for CI, SUITE_PART the files and tests that it names. SUITE_TRACEBACKS is pytest's --tb.
"""

import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
SKIPPED = 75


def run_suite(name, folder, files, short_files, options=()):
    """pytest's status, in `folder`, with name_adapter.py and name_differences.txt."""
    is_short = os.environ.get("SUITES") == "short"
    paths = [str(HERE), str(HERE.parent), str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths),
                                "SUITE_DIFFERENCES": str(HERE / f"{name}_differences.txt"),
                                "SLUICE": str(pathlib.Path(os.environ["SLUICE"]).resolve()),
                                "MODEL": str(pathlib.Path(os.environ["MODEL"]).resolve())}
    part = os.environ.get("SUITE_PART", "").split() or (short_files if is_short else [])
    if part:
        environment["SUITE_PART"] = " ".join(part)
    command = [sys.executable, "-m", "pytest", "-q", f"--tb={os.environ.get('SUITE_TRACEBACKS', 'no')}",
               "-rN", "--disable-warnings", "--continue-on-collection-errors", "--timeout=120",
               "-p", "no:cacheprovider", "-p", "differences", "-p", f"{name}_adapter", *options, *(part or files)]
    return subprocess.run(command, check=False, cwd=folder, env=environment).returncode
