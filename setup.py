"""Builds the one shared object of deconv_ext: the operators, and the CUDA kernels where nvcc is at hand.

Environment: TORCH_CUDA_ARCH_LIST (default: this machine's GPUs, or a list for most), MAX_JOBS, and FORCE_CUDA=1 or
USE_CUDA=0 to decide about the kernels; without them a torch that was built for CUDA gets kernels.
The build needs no GPU and fetches nothing. What is missing ends it at once, in one sentence.
"""

import os
import re
import runpy
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from setuptools import Extension, setup

try:
    import torch
    from torch.utils import cpp_extension
except ModuleNotFoundError:
    raise SystemExit("deconv_ext: the build needs torch >= 2.10, but this Python has no torch") from None

ROOT = Path(__file__).parent
TORCH_TARGET = "0x020a000000000000"  # torch 2.10
# Without a GPU to build for: Turing, Ampere and Ada with PTX for what comes later, Hopper with its own instructions.
DEFAULT_ARCHS = "7.5 8.0+PTX 9.0a"
HOPPER = "9.0a"
TOLD_APART = (80, 90)  # the architectures from which on the sources compile to something else
# Free-threaded Python has no limited API; the library calls no Python, so there only the wheel's tag is another.
LIMITED_API = not sysconfig.get_config_var("Py_GIL_DISABLED")


def is_on(name: str) -> bool:
    return os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE")


def is_off(name: str) -> bool:
    return os.environ.get(name, "").upper() in ("0", "OFF", "NO", "FALSE")


def find_toolkit() -> Path | None:
    """The CUDA toolkit that has both compiler and headers; torch's own search needs a torch built for CUDA."""
    nvcc = shutil.which("nvcc")
    candidates = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    candidates += [str(Path(nvcc).resolve().parents[1])] if nvcc else []
    candidates += ["/usr/local/cuda"]
    for root in (Path(candidate) for candidate in candidates if candidate):
        if (root / "bin" / "nvcc").exists() and (root / "include" / "cuda_runtime_api.h").exists():
            return root
    return None


def wants_kernels() -> bool:
    if is_off("USE_CUDA") or is_off("FORCE_CUDA"):
        return False
    return is_on("FORCE_CUDA") or is_on("USE_CUDA") or torch.version.cuda is not None


def missing() -> str | None:
    """What the build lacks, as a sentence."""
    if torch.__version__ < (2, 10):
        return f"the build needs torch >= 2.10, but this Python has {torch.__version__}"
    compiler = os.environ.get("CXX", "c++").split()[0]
    if shutil.which(compiler) is None:
        return f"the build needs a C++ compiler, but there is no {compiler}; install one or name it in CXX"
    toolkit = find_toolkit()
    if wants_kernels() and toolkit is None:
        reason = f"torch {torch.__version__} is built for CUDA" if torch.version.cuda else "kernels are asked for"
        return f"{reason}, but no CUDA toolkit (nvcc) was found; install one, or set USE_CUDA=0 to do without kernels"
    if not cpp_extension.is_ninja_available():
        return "the build needs ninja, but there is none on the path; pip install ninja brings it"
    return nvcc_refusal(toolkit / "bin" / "nvcc") if wants_kernels() else None


def nvcc_refusal(nvcc: Path) -> str | None:
    """Why nvcc does not compile for the listed architectures, as it says when asked for its commands alone."""
    command = [nvcc, "--dryrun", *architecture_flags(), "-c", "-x", "cu", os.devnull, "-o", os.devnull]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode == 0:
        return None
    reason = answer.stderr.strip().rpartition("\n")[2].rpartition(":")[2].strip()
    advice = "install another CUDA toolkit, or set TORCH_CUDA_ARCH_LIST to what this one compiles for"
    return f"{nvcc} does not compile for {architectures()} ({reason}); {advice}"


def relative(paths: Iterable[Path]) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for path in paths)


HEADERS = relative(path for pattern in ("*.h", "*.cuh") for path in (ROOT / "csrc").rglob(pattern))


class Build(cpp_extension.BuildExtension):
    """Torch's builder, which under a CPU-only torch does not tell ninja what headers the CUDA sources read."""

    def run(self) -> None:
        if problem := missing():
            raise SystemExit(f"deconv_ext: {problem}")
        super().run()

    def get_ext_filename(self, ext_name: str) -> str:
        """One name under every Python, for the library is loaded by its path."""
        return f"{ext_name.replace('.', '/')}.abi3.so"

    def build_extension(self, ext: Extension) -> None:
        newest = max((ROOT / header).stat().st_mtime for header in HEADERS)
        for compiled in Path(self.build_temp).rglob("*.o"):
            if compiled.stat().st_mtime < newest:
                compiled.unlink()
        super().build_extension(ext)


def architectures() -> str:
    """TORCH_CUDA_ARCH_LIST, or the GPUs of this machine, or the default list."""
    if not os.environ.get("TORCH_CUDA_ARCH_LIST"):
        visible = {torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())}
        own = " ".join(f"{major}.{minor}" for major, minor in sorted(visible)).replace("9.0", HOPPER)
        os.environ["TORCH_CUDA_ARCH_LIST"] = own or DEFAULT_ARCHS
    return os.environ["TORCH_CUDA_ARCH_LIST"].replace(";", " ")


def architecture_flags() -> list[str]:
    """Torch's flags of nvcc for the listed architectures, with one PTX for all that the sources do not tell apart.

    nvcc takes longer to translate a source to PTX than to assemble that for one more GPU.
    """
    plain = re.compile(r"-gencode=arch=compute_(\d+),code=(sm|compute)_(\d+)")  # without a suffix such as 9.0a's
    flags = cpp_extension._get_cuda_arch_flags()
    listed = [int(match[1]) for match in map(plain.fullmatch, flags) if match]

    def with_shared_ptx(match: re.Match[str]) -> str:
        newer = [int(match[1]) >= first for first in TOLD_APART]
        ptx = min(other for other in listed if [other >= first for first in TOLD_APART] == newer)
        return f"-gencode=arch=compute_{ptx},code={match[2]}_{match[3] if match[2] == 'sm' else ptx}"

    return list(dict.fromkeys(plain.sub(with_shared_ptx, flag) if plain.fullmatch(flag) else flag for flag in flags))


def extension() -> Extension:
    toolkit = find_toolkit()
    cuda = wants_kernels() and toolkit is not None  # a missing toolkit ends the build, but not an sdist
    sources = relative((ROOT / "csrc").rglob("*.cpp"))
    flags = ["-O3", "-g0", "-std=c++17", "-fvisibility=hidden", f"-DTORCH_TARGET_VERSION={TORCH_TARGET}"]
    options = {
        "name": "deconv_ext._C",
        "py_limited_api": LIMITED_API,
        "depends": HEADERS,
        "include_dirs": [str(ROOT / "csrc")],
        # libtorch.so re-exports what the build needs from its parts, so it must be named although no symbol is its own.
        # libstdc++ goes first, for torch happens to export pieces of its own libstdc++ too.
        "extra_link_args": [
            "-Wl,--strip-all",
            "-Wl,--exclude-libs,ALL",
            "-lstdc++",
            "-Wl,--no-as-needed",
            "-ltorch",
            "-Wl,--as-needed",
        ],
    }
    if not cuda:
        result = cpp_extension.CppExtension(sources=sources, extra_compile_args={"cxx": flags}, **options)
    else:
        cpp_extension.CUDA_HOME = str(toolkit)
        # The CUDA runtime is linked in, so nvcc's version need not be that of torch.
        cpp_extension._check_cuda_version = lambda *_: None
        archs = architectures()
        write_instances = runpy.run_path(str(ROOT / "csrc" / "launch" / "instances.py"))["write"]
        sources += relative((ROOT / "csrc").rglob("*.cu"))
        sources += relative(write_instances(ROOT / "csrc", ROOT / "build" / "instances"))
        flags += ["-DUSE_CUDA", "-DDECONV_WITH_CUDA", f'-DDECONV_CUDA_ARCHS="{archs}"']
        flags += ["-DDECONV_SM90"] if any(arch.startswith(HOPPER) for arch in archs.split()) else []
        nvcc_flags = ["-O3", "-std=c++17", "-Xcompiler=-fvisibility=hidden"]
        result = cpp_extension.CUDAExtension(
            sources=sources,
            extra_compile_args={"cxx": flags, "nvcc": [*nvcc_flags, *architecture_flags()]},
            **options,
        )
    # The stable ABI lives in libtorch.so alone; the CUDA runtime is linked in, so the CUDA of torch does not matter.
    result.libraries = ["cudart_static", "dl", "rt", "pthread"] if cuda else []
    return result


setup(
    ext_modules=[extension()],
    cmdclass={"build_ext": Build},
    options={"bdist_wheel": {"py_limited_api": "cp310"} if LIMITED_API else {}},
)
