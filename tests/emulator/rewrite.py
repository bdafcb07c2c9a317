"""Turns CUDA into C++ for the emulator: asm statements into calls, __shared__ into memory that threads share.

python rewrite.py COMPILER kernel.cu kernel.cpp [OPTION of the preprocessor...]
"""

import re
import subprocess
import sys
from pathlib import Path

ASM = re.compile(r"\basm\s*(?:volatile)?\s*\(")
STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
OPERAND = re.compile(r'"([^"]*)"\s*\(')
DYNAMIC = re.compile(r"extern\s+__shared__\s+__attribute__\(\(aligned\(\d+\)\)\)\s+unsigned\s+char\s+(\w+)\s*\[\]\s*;")
STATIC = re.compile(r"\b__shared__\b([^;{}()=]*(?:\(\([^;]*?\)\))?[^;{}()=]*?)\b(\w+)\s*((?:\[[^\]]*\]\s*)+);")
SEVERAL = re.compile(r"\b__shared__\b[^;{}=]*(?:\]|\b\w)\s*,\s*\w+\s*(?:\[|;|,)")
PLACES = {
    "threadIdx": "self().index",
    "blockIdx": "self().block->index",
    "blockDim": "self().block->threads",
    "gridDim": "self().block->grid",
}
PLACE = re.compile(rf"(?<![.>\w])({'|'.join(PLACES)})(?=\.[xyz]\b)")


def _closing(text: str, at: int) -> int:
    """Where the parenthesis that was opened just before `at` is closed."""
    depth = 1
    while depth:
        if text[at] == '"':
            match = STRING.match(text, at)
            assert match
            at = match.end()
            continue
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    return at - 1


def _sections(body: str) -> list[str]:
    """The template, the outputs, the inputs and the clobbers, which colons divide."""
    sections, start, at = [], 0, 0
    while at < len(body):
        if body[at] == '"':
            match = STRING.match(body, at)
            assert match
            at = match.end()
        elif body[at] == "(":
            at = _closing(body, at + 1) + 1
        elif body[at] == ":":
            sections.append(body[start:at])
            start = at = at + 1
        else:
            at += 1
    return [*sections, body[start:], "", "", ""][:4]


def _operands(section: str, kind: str) -> list[str]:
    operands, at = [], 0
    while match := OPERAND.search(section, at):
        end = _closing(section, match.end())
        letter = match.group(1).strip("=+")
        operands.append(f"::emulator::{kind}<'{letter}'>({section[match.end() : end]})")
        at = end
    return operands


def _call(body: str) -> str:
    template, outputs, inputs, _clobbers = _sections(body)
    if not "".join(STRING.findall(template)).replace('"', ""):
        return "((void)0)"  # for the compiler alone
    operands = _operands(outputs, "out") + _operands(inputs, "in")
    text = " ".join(STRING.findall(template))
    array = ", ".join(operands) or "::emulator::Operand{}"
    return (
        f"{{ static const ::emulator::Code code_({text}); "
        f"::emulator::Operand operands_[] = {{{array}}}; code_.run(operands_); }}"
    )


def rewrite(text: str) -> str:
    text = DYNAMIC.sub(r"unsigned char* const \1 = ::emulator::dynamic_shared();", text)
    assert not SEVERAL.search(text), "several __shared__ arrays in one declaration"
    text = STATIC.sub(r"static\1\2\3; ::emulator::enter_static(\2, sizeof(\2));", text)
    assert "__shared__" not in text, "shared memory of a kind that the emulator does not know"
    text = PLACE.sub(lambda match: f"::emulator::{PLACES[match.group(1)]}", text)
    parts, at = [], 0
    while match := ASM.search(text, at):
        end = _closing(text, match.end())
        parts += [text[at : match.start()], _call(text[match.end() : end])]
        at = end + 1
    return "".join([*parts, text[at:]])


def main() -> None:
    compiler, source, output = sys.argv[1:4]
    target = Path(output)
    architecture = ["-D__CUDA_ARCH__=900", "-D__CUDA_ARCH_FEAT_SM90_ALL"]
    here = Path(__file__).parent
    headers = [f"-I{here}/cuda", "-include", f"{here}/ptx.h", "-include", f"{here}/cuda/cuda_runtime.h"]
    depends = ["-MD", "-MF", f"{target}.d", "-MT", output]
    command = [compiler, "-E", "-x", "c++", "-std=c++17", *architecture, *headers, *sys.argv[4:], *depends, source]
    target.write_text(rewrite(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))


if __name__ == "__main__":
    main()
