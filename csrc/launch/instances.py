"""Writes the explicit instantiations of the launchers, one source for each header and element type.

    python instances.py CSRC FOLDER

A launch header declares what it wants in one line for each launcher:

    // instances: launch_igemm<T, kParts>(IgemmPlan): float16 1, bfloat16 1, tf32 1, float32 2

Each entry is an element type and the values of the template parameters behind T. Every source compiles by itself, so
the compilers run in parallel. A file whose text stays the same is not written, so nothing is compiled again.
"""

import re
import sys
from pathlib import Path

TYPES = {
    "float16": ("__half", "cuda_fp16.h"),
    "bfloat16": ("__nv_bfloat16", "cuda_bf16.h"),
    "tf32": ("float", None),
    "float32": ("float", None),
    "float64": ("double", None),
}
MARK = re.compile(r"\s*//+\s*instances?\s*:", re.IGNORECASE)  # misspelled ones too, which LINE refuses
LINE = re.compile(r"// instances: (\w+)<T((?:, \w+)*)>\((\w+)\): (.+)")


def _instances(header: Path) -> dict[str, list[str]]:
    """The instantiations that a header declares, by element type."""
    wanted: dict[str, list[str]] = {}
    for number, line in enumerate(header.read_text().splitlines(), 1):
        if not MARK.match(line):
            continue
        match = LINE.fullmatch(line)
        entries = match[4].split(", ") if match else []
        for entry in entries:
            name, *values = entry.split(" ")
            if name not in TYPES or len(values) != match[2].count(","):
                entries = []
                break
            arguments = ", ".join([TYPES[name][0], *values])
            signature = f"const Problem&, const {match[3]}&, const Operands&, cudaStream_t"
            wanted.setdefault(name, []).append(f"template cudaError_t {match[1]}<{arguments}>({signature});")
        if not entries:
            raise SystemExit(
                f"{header}:{number}: expected '// instances: launcher<T, k...>(Plan): type value..., ...', a value"
                f" for each parameter behind T and types of {', '.join(TYPES)}, but got {line!r}"
            )
    return wanted


def write(csrc: Path, folder: Path) -> list[Path]:
    """Writes the sources of all headers in `csrc` into `folder`, removes others there, and returns them."""
    texts: dict[Path, str] = {}
    for header in sorted(csrc.rglob("*launch*.cuh")):
        path = header.relative_to(csrc)
        for name, lines in _instances(header).items():
            include = f"#include <{TYPES[name][1]}>\n\n" if TYPES[name][1] else ""
            body = "\n".join(lines)
            source = folder / f"{'_'.join([*path.parts[:-1], path.stem, name])}.cu"
            texts[source] = f'{include}#include "{path}"\n\nnamespace deconv {{\n{body}\n}}  // namespace deconv\n'
    folder.mkdir(parents=True, exist_ok=True)
    for old in set(folder.glob("*.cu")) - set(texts):
        old.unlink()
    for source, text in texts.items():
        if not source.exists() or source.read_text() != text:
            source.write_text(text)
    return sorted(texts)


if __name__ == "__main__":
    print(*write(Path(sys.argv[1]), Path(sys.argv[2])), sep="\n")
