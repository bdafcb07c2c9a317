"""Writes the explicit instantiations of the launchers, and `launch`, which finds a plan's launcher.

    python instances.py CSRC FOLDER

A launcher is declared by one line in its source:

    // instances: launch_igemm<T, kParts>(IgemmPlan): float16 1, bfloat16 1, tf32 1, float32 2

Each entry is an element type and the values of the template parameters behind T; `launch` compares each with the plan's
member of that name (kParts: `parts`). tf32 and float32 are both of type float. A header (.cuh) is instantiated in one
source for each type, so the compilers run in parallel; a launcher for all types, `// instances:
launch_group_merge(Plan)`, stands in a .cu. A file whose text stays the same is not written, so
nothing is compiled again.
"""

import re
import sys
from pathlib import Path
from typing import NamedTuple

TYPES = {  # in C++, their header, and the values of DType
    "float16": ("__half", "cuda_fp16.h", "kFloat16"),
    "bfloat16": ("__nv_bfloat16", "cuda_bf16.h", "kBFloat16"),
    "tf32": ("float", None, "kFloat32"),
    "float32": ("float", None, "kFloat32"),
    "float64": ("double", None, "kFloat64"),
}
MARK = re.compile(r"\s*//+\s*instances?\s*:", re.IGNORECASE)  # misspelled ones too, which LINE refuses
LINE = re.compile(r"// instances: (\w+)(?:<T((?:, k[A-Z]\w*)*)>\((\w+)\): (.+)|\((\w+)\))")


def _arguments(name: str, values: list[str]) -> str:
    return f"<{', '.join([TYPES[name][0], *values])}>"


class Launcher(NamedTuple):
    """One declaration: the function, its template parameters behind T, its plan and the values of each type."""

    name: str
    parameters: list[str]
    plan: str
    types: list[tuple[str, list[str]]]  # none: not a template

    def signature(self, operands: str) -> str:
        return f"cudaError_t {self.name}{operands}(const Problem&, const {self.plan}&, const Operands&, cudaStream_t);"

    def declaration(self) -> str:
        if not self.types:
            return self.signature("")
        is_bool = [value in ("true", "false") for value in self.types[0][1]]
        kinds = [f"{'bool' if b else 'int'} {name}" for b, name in zip(is_bool, self.parameters, strict=True)]
        return f"template <{', '.join(['class T', *kinds])}>\n{self.signature('')}"

    def instantiation(self, name: str, values: list[str]) -> str:
        return f"template {self.signature(_arguments(name, values))}"

    def dispatch(self) -> str:
        call = "(problem, *tile, operands, stream);"
        lines = []
        for name, values in self.types:
            members = [f"tile->{parameter[1].lower()}{parameter[2:]}" for parameter in self.parameters]
            equal = [f"{member} == {value}" for member, value in zip(members, values, strict=True)]
            test = " && ".join([f"problem.dtype == DType::{TYPES[name][2]}", *equal])
            lines.append(f"    if ({test}) return {self.name}{_arguments(name, values)}{call}")
        lines.append("    return cudaErrorInvalidValue;" if self.types else f"    return {self.name}{call}")
        body = "\n".join(lines)
        return f"  if (const auto* tile = plan.get_if<{self.plan}>()) {{\n{body}\n  }}"


def _launchers(source: Path) -> list[Launcher]:
    """The launchers that a source declares."""
    found = []
    for number, line in enumerate(source.read_text().splitlines(), 1):
        if not MARK.match(line):
            continue
        match = LINE.fullmatch(line)
        parameters = (match[2] or "").split(", ")[1:] if match else []
        entries = [entry.split(" ") for entry in match[4].split(", ")] if match and match[4] else []
        if not match or any(name not in TYPES or len(values) != len(parameters) for name, *values in entries):
            raise SystemExit(
                f"{source}:{number}: expected '// instances: launcher<T, k...>(Plan): type value..., ...', a value"
                f" for each parameter behind T and types of {', '.join(TYPES)}, or '// instances: launcher(Plan)',"
                f" but got {line!r}"
            )
        types = [(name, values) for name, *values in entries]
        found.append(Launcher(match[1], parameters, match[3] or match[5], types))
    return found


def _launch(launchers: dict[Path, list[Launcher]], csrc: Path) -> str:
    """The source of `launch`."""
    folders = sorted({source.parent for source in launchers})
    plans = [plan.relative_to(csrc) for folder in folders for plan in sorted(folder.glob("plan*.h"))]
    includes = "\n".join(f'#include "{plan}"' for plan in plans if not plan.name.startswith("planner"))
    all_launchers = [launcher for some in launchers.values() for launcher in some]
    declarations = "\n".join(launcher.declaration() for launcher in all_launchers)
    body = "\n".join(launcher.dispatch() for launcher in all_launchers)
    return (
        f'#include "families/launch.h"\n\n#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n\n{includes}\n\n'
        f"namespace deconv {{\n\n{declarations}\n\n"
        "cudaError_t launch(const Problem& problem, const Plan& plan, const Operands& operands,\n"
        "                   cudaStream_t stream) {\n"
        f"{body}\n  return cudaErrorInvalidValue;\n}}\n\n}}  // namespace deconv\n"
    )


def write(csrc: Path, folder: Path) -> list[Path]:
    """Writes the sources of all launchers of `csrc` into `folder`, removes others there, and returns them."""
    sources = sorted([*csrc.rglob("*launch*.cuh"), *csrc.rglob("*launch*.cu")])
    launchers = {source: found for source in sources if (found := _launchers(source))}
    texts = {folder / "launch.cu": _launch(launchers, csrc)}
    for source, found in launchers.items():
        path = source.relative_to(csrc)
        for name, (_, header, _) in TYPES.items():
            lines = [
                launcher.instantiation(name, values)
                for launcher in found
                for of, values in launcher.types
                if of == name
            ]
            if lines:
                include = f"#include <{header}>\n\n" if header else ""
                body = "\n".join(lines)
                texts[folder / f"{'_'.join([*path.parts[:-1], path.stem, name])}.cu"] = (
                    f'{include}#include "{path}"\n\nnamespace deconv {{\n{body}\n}}  // namespace deconv\n'
                )
    folder.mkdir(parents=True, exist_ok=True)
    for old in set(folder.glob("*.cu")) - set(texts):
        old.unlink()
    for target, text in texts.items():
        if not target.exists() or target.read_text() != text:
            target.write_text(text)
    return sorted(texts)


if __name__ == "__main__":
    print(*write(Path(sys.argv[1]), Path(sys.argv[2])), sep="\n")
