"""Reads the .def tables of interpose/: C macro calls, one a row, each kind with its columns."""
import pathlib
import re
from types import SimpleNamespace as Row

COLUMNS = {
    "HOOK": ("base", "symbol", "since", "flavour", "need", "effect", "params", "args"),
    "RESOLVE": ("base", "symbol", "since", "flavour", "params", "args"),
    "PASS": ("base", "symbol", "since", "flavour", "reason"),
    "OPTION": ("field", "name", "type", "default", "values", "sentence"),
    "COUNTER": ("name", "unit", "heading", "sentence"),
    "BYPASS": ("name", "sentence"),
}
EFFECT_OF_RESOLVE = "replace"  # an address of ours in the place of the driver's

STRING = r'"(?:[^"\\]|\\.)*"'
TOKEN = re.compile(rf"\s*({STRING}|[(),]|[^\s(),\"]+)")


def arguments(text: str, start: int) -> tuple[list[str], int]:
    """The arguments of the call whose text begins behind its parenthesis, and the offset behind the closing one."""
    found, current, depth, at = [], [], 0, start
    while token := TOKEN.match(text, at):
        at = token.end()
        word = token[1]
        if word == ")" and depth == 0:
            return found + [plain(current)], at
        if word == "," and depth == 0:
            found.append(plain(current))
            current = []
            continue
        depth += {"(": 1, ")": -1}.get(word, 0)
        current.append(word)
    raise ValueError(f"a row is not closed: {text[start:start + 60]!r}")


def plain(words: list[str]) -> str:
    """Adjacent string literals become their text; anything else stays as it is written."""
    if words and all(word.startswith('"') for word in words):
        return "".join(re.sub(r"\\(.)", r"\1", word[1:-1]) for word in words)
    return " ".join(words)


def read_table(path: pathlib.Path) -> list[Row]:
    """The rows in order. `kind` is the macro, `section` the comment line that the row's block began with."""
    text = path.read_text()
    rows, section, at = [], "", 0
    line = re.compile(r"//[ \t]?(.*)\n|(\w+)\(|\s+")
    while at < len(text):
        match = line.match(text, at)
        if match is None or (match[2] and match[2] not in COLUMNS):
            raise ValueError(f"{path}:{text.count(chr(10), 0, at) + 1}: neither a comment nor a row of {', '.join(COLUMNS)}")
        at = match.end()
        if match[1] is not None:
            section = match[1]
        elif match[2]:
            values, at = arguments(text, at)
            columns = COLUMNS[match[2]]
            if len(values) != len(columns):
                raise ValueError(f"{path}: {match[2]}({values[0]}, …) has {len(values)} columns, not {len(columns)}: {columns}")
            row = Row(kind=match[2], section=section, **dict(zip(columns, values)))
            if row.kind == "RESOLVE":
                row.effect = EFFECT_OF_RESOLVE
            rows.append(row)
    return rows
