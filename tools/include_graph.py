"""Checks that no include of csrc/ runs backwards between its strata, and that there is no cycle between files.

    python tools/include_graph.py [--list]

The strata, each of which may include itself and those before it: core, planner, device, launch, lowerings and the
families (one stratum: a lowering's plan holds an inner plan), torch. Exit status 1 if an include breaks this.
"""

import re
import sys
from pathlib import Path

CSRC = Path(__file__).parent.parent / "csrc"
STRATA = ("core", "planner", "device", "launch", "families", "torch")
OF_FOLDER = {"lowerings": "families"}
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def edges() -> dict[str, list[str]]:
    """The files that each file of csrc/ includes, as paths from csrc/."""
    files = sorted(path for path in CSRC.rglob("*") if path.suffix in (".h", ".cpp", ".cu", ".cuh"))
    return {str(path.relative_to(CSRC)): INCLUDE.findall(path.read_text()) for path in files}


def stratum(path: str) -> int:
    folder = path.split("/")[0]
    return STRATA.index(OF_FOLDER.get(folder, folder))


def cycle(graph: dict[str, list[str]]) -> list[str]:
    """Files that include each other in a ring, the first one again at the end; empty if there is none."""
    done: set[str] = set()

    def visit(path: str, way: list[str]) -> list[str]:
        if path in way:
            return [*way[way.index(path) :], path]
        if path in done:
            return []
        for other in graph[path]:
            if ring := visit(other, [*way, path]):
                return ring
        done.add(path)
        return []

    return next((ring for path in graph if (ring := visit(path, []))), [])


def main() -> int:
    graph = edges()
    backwards = [(a, b) for a, others in graph.items() for b in others if stratum(b) > stratum(a)]
    for a, b in backwards:
        print(f"csrc/{a} includes {b}, of a later stratum")
    ring = cycle(graph)
    if ring:
        print("cycle: " + " -> ".join(ring))
    if "--list" in sys.argv:
        print(*(f"{a} -> {b}" for a, others in graph.items() for b in others), sep="\n")
    print(f"{len(graph)} files, {sum(map(len, graph.values()))} includes, {len(backwards)} backwards")
    return 1 if backwards or ring else 0


if __name__ == "__main__":
    sys.exit(main())
